"""How each ATen op lowers: one row per overload. An op without a row becomes a call of ATen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dynacompile.ops.pointwise import POINTWISE


@dataclass(frozen=True)
class Row:
    """kind: the lowering that takes the node. operands: in which dtype a pointwise formula gets its tensors and numbers.

    "out": the result's compute dtype; "args": the dtype that the arguments promote to (comparisons); "own": each its own.
    expand: the formula (pointwise), else None. detail: what a kind needs to know beside. samples: the argument sets of its tests, by name.
    """

    kind: str
    samples: str
    operands: str = "out"
    expand: Callable | None = None
    detail: str = ""


def rows(kind: str, samples: str, **details: str) -> dict[str, Row]:
    """Rows of one kind: `name__overload="detail"`."""
    return {"aten." + name.replace("__", "."): Row(kind, samples, detail=detail) for name, detail in details.items()}


def pointwise_rows() -> dict[str, Row]:
    return {f"aten.{name}": Row("pointwise", samples, operands, expand) for name, (operands, samples, expand) in POINTWISE.items()}


TABLE: dict[str, Row] = {
    **pointwise_rows(),
    # geometry only
    **rows("view", "view", view__default="reshape", _unsafe_view__default="reshape", reshape__default="reshape", _reshape_alias__default="reshape"),
    **rows("view", "permute", permute__default=""),
    **rows("view", "matrix", t__default=""),
    **rows("view", "transpose", transpose__int=""),
    **rows("view", "expand", expand__default=""),
    **rows("view", "slice", slice__Tensor=""),
    **rows("view", "select", select__int=""),
    **rows("view", "unsqueeze", unsqueeze__default=""),
    **rows("view", "squeeze", squeeze__default=""),
    **rows("view", "squeeze_dim", squeeze__dim=""),
    **rows("view", "squeeze_dims", squeeze__dims=""),
    **rows("view", "as_strided", as_strided__default=""),
    **rows("view", "unary", detach__default="", alias__default=""),
    **rows("view", "diagonal", diagonal__default=""),
    **rows("view", "unfold", unfold__default=""),
    **rows("view", "split", split__Tensor=""),
    **rows("view", "split_sizes", split_with_sizes__default=""),
    **rows("view", "unbind", unbind__int=""),
    # without tensor arguments
    **rows("create", "full", full__default="fill"),
    **rows("create", "full_like", full_like__default="fill"),
    **rows("create", "new_full", new_full__default="fill"),
    **rows("create", "zeros_like", zeros_like__default="0", ones_like__default="1", empty_like__default="empty"),
    **rows("create", "sizes", zeros__default="0", ones__default="1", empty__memory_format="empty"),
    **rows("create", "new_sizes", new_zeros__default="0", new_ones__default="1", new_empty__default="empty"),
    **rows("create", "strided", empty_strided__default="empty"),
    **rows("create", "new_strided", new_empty_strided__default="empty"),
    **rows("create", "permuted", empty_permuted__default="empty"),
    **rows("create", "scalar", scalar_tensor__default="scalar"),
    **rows("create", "arange_default", arange__default="arange"),
    **rows("create", "arange_start", arange__start="arange"),
    **rows("create", "arange_step", arange__start_step="arange"),
    **rows("create", "eye", eye__default="eye"),
    **rows("create", "eye_m", eye__m="eye"),
    # reductions
    **rows("reduction", "sum_all", sum__default="sum", mean__default="mean", prod__default="prod"),
    **rows("reduction", "sum", sum__dim_IntList="sum", mean__dim="mean"),
    **rows("reduction", "dim", prod__dim_int="prod"),
    **rows("reduction", "extremum", amax__default="max", amin__default="min"),
    **rows("reduction", "extremum_all", max__default="max", min__default="min"),
    **rows("reduction", "any_all", any__default="any", all__default="all"),
    **rows("reduction", "dim", any__dim="any", all__dim="all"),
    **rows("reduction", "dims", any__dims="any", all__dims="all"),
    **rows("reduction", "argmax", argmax__default="argmax", argmin__default="argmin"),
    **rows("extremum", "dim", max__dim="max", min__dim="min"),
    # scans
    **rows("scan", "scan", cumsum__default="sum", cumprod__default="prod"),
    **rows("scan", "scan_floats", logcumsumexp__default="logaddexp"),
    **rows("running_extremum", "running_extremum", cummax__default="max", cummin__default="min"),
    "dynacompile.running_extremum_backward.default": Row("running_extremum_backward", "running_extremum_backward"),
    **rows("variance", "var", var__correction="var", std__correction="std", var_mean__correction="var_mean", std_mean__correction="std_mean"),
    # data movement
    **rows("cat", "cat", cat__default=""),
    **rows("pad", "pad", constant_pad_nd__default=""),
    **rows("slice_scatter", "slice_scatter", slice_scatter__default=""),
    **rows("select_scatter", "select_scatter", select_scatter__default=""),
    **rows("flip", "flip", flip__default=""),
    **rows("roll", "roll", roll__default=""),
    **rows("repeat", "repeat", repeat__default=""),
    **rows("triangle", "triangle", tril__default="lower", triu__default="upper"),
    **rows("index", "index", index__Tensor=""),
    **rows("index", "index", _unsafe_index__Tensor=""),
    **rows("gather", "gather", gather__default=""),
    **rows("index_select", "index_select", index_select__default=""),
    **rows("embedding", "embedding", embedding__default=""),
    # sums at positions
    **rows("index_add", "index_add", index_add__default=""),
    **rows("scatter_add", "scatter_add", scatter_add__default=""),
    **rows("scatter_add", "scatter_reduce", scatter_reduce__two="reduce"),
    **rows("index_put", "index_put", index_put__default=""),
    **rows("embedding_backward", "embedding_backward", embedding_dense_backward__default=""),
    # windows
    **rows("max_pool", "max_pool", max_pool2d_with_indices__default=""),
    **rows("avg_pool", "avg_pool", avg_pool2d__default=""),
    **rows("adaptive_avg_pool", "adaptive_avg_pool", _adaptive_avg_pool2d__default=""),
    **rows("adaptive_max_pool", "adaptive_max_pool", adaptive_max_pool2d__default=""),
    **rows("max_pool_backward", "max_pool_backward", max_pool2d_with_indices_backward__default=""),
    **rows("avg_pool_backward", "avg_pool_backward", avg_pool2d_backward__default=""),
    **rows("adaptive_avg_pool_backward", "adaptive_avg_pool_backward", _adaptive_avg_pool2d_backward__default=""),
    **rows("adaptive_max_pool_backward", "adaptive_max_pool_backward", adaptive_max_pool2d_backward__default=""),
    # matmuls that write where we say
    **rows("extern", "mm", mm__default="mm.out"),
    **rows("extern", "addmm", addmm__default="addmm.out"),
    **rows("extern", "bmm", bmm__default="bmm.out"),
    **rows("extern", "baddbmm", baddbmm__default="baddbmm.out"),
    "aten.copy_.default": Row("copy_into", "copy_into"),
    "prims.convert_element_type.default": Row("pointwise", "cast_prims", "own", POINTWISE["_to_copy.default"][2]),
    "prims.iota.default": Row("create", "iota", detail="iota"),
}
