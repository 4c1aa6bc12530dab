"""torch's private names. `of_torch.set_grad_enabled` is what the row of that name leads to, looked up when it is first used.

A name that is written with a capital is a class. Adding one is adding it to the group of its purpose; `tests/architecture/test_private.py` finds what has
no row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dynacompile.private.rows import Names, reader

if TYPE_CHECKING:  # classes that annotations name
    from torch._C import Argument as Argument
    from torch._C import OptionalType as OptionalType
    from torch._C import TensorType as TensorType
    from torch._guards import SLoc as SLoc
    from torch._guards import Source as TorchSource  # noqa: F401
    from torch._ops import OpOverload as OpOverload
    from torch._ops import OpOverloadPacket as OpOverloadPacket
    from torch._subclasses.fake_tensor import DataDependentOutputException as DataDependentOutputException
    from torch._subclasses.fake_tensor import DynamicOutputShapeException as DynamicOutputShapeException
    from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
    from torch._subclasses.fake_tensor import UnsupportedOperatorException as UnsupportedOperatorException
    from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule  # noqa: F401
    from torch.utils._device import DeviceContext as DeviceContext
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

NAMES = Names("torch", torch.__version__)
add = NAMES.add
__getattr__ = reader(NAMES, globals())

# graphs and what they are traced with

add(
    "tensors without memory, on which graphs are traced",
    FakeTensor="torch._subclasses.fake_tensor.FakeTensor",
    FakeTensorMode="torch._subclasses.fake_tensor.FakeTensorMode",
    find_torch_dispatch_rule="torch._library.simple_registry.find_torch_dispatch_rule",
    set_throw_on_mutable_data_ptr="torch._C._set_throw_on_mutable_data_ptr",
    DataDependentOutputException="torch._subclasses.fake_tensor.DataDependentOutputException",
    DynamicOutputShapeException="torch._subclasses.fake_tensor.DynamicOutputShapeException",
    UnsupportedOperatorException="torch._subclasses.fake_tensor.UnsupportedOperatorException",
    DisableTorchDispatch="torch._C._DisableTorchDispatch",
    in_kernel_invocation_manager="torch._subclasses.fake_tensor.in_kernel_invocation_manager",
    prims_wrappers="torch._prims_common.wrappers",
    disable_dynamo="torch._disable_dynamo",
)
add(
    "operators as objects",
    OpOverload="torch._ops.OpOverload",
    OpOverloadPacket="torch._ops.OpOverloadPacket",
    CustomOpDef=("torch.library.CustomOpDef", "torch._library.custom_ops.CustomOpDef"),
    C="torch._C",
)
add(
    "modes of the dispatcher, while operators are recorded",
    TorchDispatchMode="torch.utils._python_dispatch.TorchDispatchMode",
    disable_current_modes="torch.utils._python_dispatch._disable_current_modes",
    python_dispatch="torch.utils._python_dispatch",
    enable_python_dispatcher="torch._dispatch.python.enable_python_dispatcher",
    DisablePythonDispatcher="torch._C._DisablePythonDispatcher",
    DispatchKey="torch._C.DispatchKey",
    DispatchKeySet="torch._C.DispatchKeySet",
    functionalize_key="torch._C.DispatchKey.Functionalize",
    dispatch_key_parse="torch._C._dispatch_key_parse",
    ExcludeDispatchKeyGuard="torch._C._ExcludeDispatchKeyGuard",
    ForceDispatchKeyGuard="torch._C._ForceDispatchKeyGuard",
    dispatch_has_kernel_for_dispatch_key="torch._C._dispatch_has_kernel_for_dispatch_key",
    dispatch_tls_local_exclude_set="torch._C._dispatch_tls_local_exclude_set",
    dispatch_tls_local_include_set="torch._C._dispatch_tls_local_include_set",
    len_torch_dispatch_stack="torch._C._len_torch_dispatch_stack",
    proxy_mode_key="torch._C._TorchDispatchModeKey.PROXY",
)
add(
    "graph modules whose Python code is made when somebody asks for it",
    LazyGraphModule="torch.fx._lazy_graph_module._LazyGraphModule",
    illegal_names="torch.fx.graph._illegal_names",
    make_graph_module="torch.fx._lazy_graph_module._make_graph_module",
    use_lazy_graph_module="torch.fx._lazy_graph_module._use_lazy_graph_module",
)
add("where a symbol comes from, in torch's errors", SLoc="torch._guards.SLoc", TorchSource="torch._guards.Source")
add(
    "operators in terms of simpler ones",
    decomposition_table="torch._decomp.decomposition_table",
    meta_table="torch._decomp.meta_table",
    decompositions="torch._decomp.decompositions",
    meta_registrations="torch._meta_registrations",
    refs="torch._refs",
    refs_nn_functional="torch._refs.nn.functional",
    refs_special="torch._refs.special",
)
add(
    "layouts as eager chooses them",
    suggest_memory_format="torch._prims_common.suggest_memory_format",
    is_non_overlapping_and_dense_or_false="torch._prims_common.is_non_overlapping_and_dense_or_false",
)
add("lists and dicts as flat lists of tensors", tree_leaves="torch.utils._pytree.tree_leaves", tree_map="torch.utils._pytree.tree_map")
add("the schema of an operator", Argument="torch._C.Argument", OptionalType="torch._C.OptionalType", TensorType="torch._C.TensorType")

# autograd and settings of a thread

add(
    "settings of a thread, read in guards and set in residual code",
    set_grad_enabled="torch._C._set_grad_enabled",
    InferenceMode="torch._C._InferenceMode",
    enter_inference_mode="torch.autograd.grad_mode._enter_inference_mode",
    exit_inference_mode="torch.autograd.grad_mode._exit_inference_mode",
    enter_autocast="torch.amp.autocast_mode._enter_autocast",
    exit_autocast="torch.amp.autocast_mode._exit_autocast",
    DisableAutocast="torch._C._DisableAutocast",
    is_any_autocast_enabled="torch._C._is_any_autocast_enabled",
    is_tracing="torch._C._is_tracing",
    get_tracing_state="torch._C._get_tracing_state",
    only_lift_cpu_tensors="torch._C._only_lift_cpu_tensors",
    set_only_lift_cpu_tensors="torch._C._set_only_lift_cpu_tensors",
)
add(
    "deterministic algorithms, which are settings of a graph",
    get_deterministic_algorithms="torch._C._get_deterministic_algorithms",
    get_deterministic_algorithms_warn_only="torch._C._get_deterministic_algorithms_warn_only",
    get_deterministic_fill_uninitialized_memory="torch._C._get_deterministic_fill_uninitialized_memory",
    set_deterministic_algorithms="torch._C._set_deterministic_algorithms",
    set_deterministic_fill_uninitialized_memory="torch._C._set_deterministic_fill_uninitialized_memory",
)
add("settings of libraries, as attributes of modules", ContextProp="torch.backends.ContextProp")
add(
    "what autograd knows of a view, and versions of tensors",
    CreationMeta="torch._C._autograd.CreationMeta",
    get_creation_meta="torch._C._autograd._get_creation_meta",
    AutoDispatchBelowADInplaceOrView="torch._C._AutoDispatchBelowADInplaceOrView",
    increment_version="torch._C._increment_version",
    unsafe_set_version_counter="torch._C._autograd._unsafe_set_version_counter",
    unsafe_preserve_version_counter="torch.autograd._unsafe_preserve_version_counter",
)
add(
    "which operation of a graph a gradient belongs to",
    get_sequence_nr="torch._C._autograd._get_sequence_nr",
    current_autograd_node="torch._C._current_autograd_node",
    top_saved_tensors_hooks="torch._C._autograd._top_saved_tensors_default_hooks",
    saved_tensors_hooks_message="torch._C._autograd._saved_tensors_hooks_get_disabled_error_message",
    saved_tensors_hooks_are_enabled="torch._C._autograd._saved_tensors_hooks_is_enabled",
    saved_tensors_hooks_set_tracing="torch._C._autograd._saved_tensors_hooks_set_tracing",
)
add(
    "graphs without writes to tensors",
    to_functional_tensor="torch._to_functional_tensor",
    from_functional_tensor="torch._from_functional_tensor",
    is_functional_tensor="torch._is_functional_tensor",
    enable_functionalization="torch._enable_functionalization",
    disable_functionalization="torch._disable_functionalization",
    functionalize_commit_update="torch._functionalize_commit_update",
    functionalize_replace="torch._functionalize_replace",
    functionalize_sync="torch._sync",
)
add(
    "transforms of torch.func, in which nothing is compiled",
    is_functorch_wrapped_tensor="torch._C._functorch.is_functorch_wrapped_tensor",
    peek_interpreter_stack="torch._C._functorch.peek_interpreter_stack",
)
add("Jacobians of several columns at once, in a backward that is differentiated", "a second derivative under vmap", add_batch_dim="torch._add_batch_dim")

add(
    "structured traces, whose first record settles whether they are written",
    "symbolic sizes",
    trace_structured="torch._logging._internal.trace_structured",
    trace_log="torch._logging._internal.trace_log",
    LazyTraceHandler="torch._logging._internal.LazyTraceHandler",
)

# who overrides torch's functions

add(
    "who overrides torch's functions: classes and modes, in torch's order",
    DisableTorchFunction="torch._C.DisableTorchFunction",
    DisableTorchFunctionSubclass="torch._C.DisableTorchFunctionSubclass",
    EnableTorchFunction="torch._C._EnableTorchFunction",
    disabled_torch_function_impl="torch._C._disabled_torch_function_impl",
    has_torch_function="torch._C._has_torch_function",
    has_torch_function_unary="torch._C._has_torch_function_unary",
    has_torch_function_variadic="torch._C._has_torch_function_variadic",
    is_torch_function_enabled="torch._C._is_torch_function_enabled",
    is_torch_function_all_disabled="torch._C._is_torch_function_all_disabled",
    is_torch_function_mode_enabled="torch._C._is_torch_function_mode_enabled",
    len_torch_function_stack="torch._C._len_torch_function_stack",
    get_function_stack_at="torch._C._get_function_stack_at",
    get_current_function_mode_stack="torch.overrides._get_current_function_mode_stack",
    push_on_torch_function_stack="torch._C._push_on_torch_function_stack",
    pop_torch_function_stack="torch._C._pop_torch_function_stack",
    tensor_convert="torch._tensor._convert",
    data_address="torch._C._data_address",
    make_subclass="torch.Tensor._make_subclass",
)
add(
    "blocks of `with torch.device(...)`",
    "a block of `with torch.device(...)` in a graph",
    DeviceContext="torch.utils._device.DeviceContext",
    device_constructors="torch.utils._device._device_constructors",
)

# Python code of torch that capture knows

add(
    "how a module is called",
    module_call_impl="torch.nn.Module._call_impl",
    module_wrapped_call_impl="torch.nn.Module._wrapped_call_impl",
)
add(
    "questions that torch's own Python code asks",
    "a graph without breaks through torch's own Python code",
    get_privateuse1_backend_name="torch._C._get_privateuse1_backend_name",
    get_warn_always="torch._C._get_warnAlways",
    jit_internal_is_scripting="torch._jit_internal.is_scripting",
    check_with="torch._check_with",
    log_api_usage_once="torch._C._log_api_usage_once",
    lazy_property_and_property="torch.distributions.utils._lazy_property_and_property",
)
add(
    "hooks of the rival's frames, which are off inside of ours",
    "a call of torch.compile's code from a region",
    set_eval_frame="torch._C._dynamo.eval_frame.set_eval_frame",
)
add(
    "control flow as operators",
    "torch.cond, scan, map and while_loop in a graph",
    cond_op="torch._higher_order_ops.cond.cond_op",
    map_rows="torch._higher_order_ops.map.map",
    map_impl="torch._higher_order_ops.map.map_impl",
    scan_rows="torch._higher_order_ops.scan.scan",
    scan_op="torch._higher_order_ops.scan.scan_op",
    while_loop_op="torch._higher_order_ops.while_loop.while_loop_op",
)
add(
    "the class that torch.autograd.Function derives from",
    "custom autograd functions whose arguments are no tensors",
    SingleLevelFunction="torch.autograd.function._SingleLevelFunction",
)
add("torch.func's transforms in a graph", "torch.func.vmap and grad in a graph", functorch_apis="torch._functorch.apis")

# optimizers

add(
    "steps of optimizers that run over lists of tensors",
    "a compiled optimizer step",
    optimizer_get_value="torch.optim.optimizer._get_value",
    optimizer_stack_if_compiling="torch.optim.optimizer._stack_if_compiling",
    group_tensors_by_device_and_dtype="torch._C._group_tensors_by_device_and_dtype",
    foreach_group_tensors="torch.utils._foreach_utils._group_tensors_by_device_and_dtype",
    optimizer_group_tensors="torch.optim.Optimizer._group_tensors_by_device_and_dtype",
    foreach_add="torch._foreach_add",
    foreach_add_="torch._foreach_add_",
    foreach_div="torch._foreach_div",
    foreach_mul="torch._foreach_mul",
    fused_adagrad_="torch._fused_adagrad_",
    fused_adam_="torch._fused_adam_",
    fused_adamw_="torch._fused_adamw_",
    fused_sgd_="torch._fused_sgd_",
    amp_update_scale_="torch._amp_update_scale_",
    amp_foreach_non_finite_check_and_unscale_="torch._amp_foreach_non_finite_check_and_unscale_",
)

# attention

SDPA = ("flash", "mem_efficient", "math", "cudnn", "overrideable")
add(
    "which kernels attention may take, as the program has chosen",
    "attention in a graph",
    native_multi_head_attention="torch._native_multi_head_attention",
    **{f"get_{kind}_sdp_enabled": f"torch._C._get_{kind}_sdp_enabled" for kind in SDPA},
    **{f"set_sdp_use_{kind}": f"torch._C._set_sdp_use_{kind}" for kind in SDPA},
)

# operators whose names begin with an underscore

add(
    "operators that graphs of all sorts have",
    aten_conj="torch.ops.aten._conj.default",
    aten_conj_physical="torch.ops.aten._conj_physical.default",
    aten_local_scalar_dense="torch.ops.aten._local_scalar_dense.default",
    aten_native_batch_norm_legit="torch.ops.aten._native_batch_norm_legit.default",
    aten_native_batch_norm_legit_no_stats="torch.ops.aten._native_batch_norm_legit.no_stats",
    aten_native_batch_norm_legit_no_training="torch.ops.aten._native_batch_norm_legit_no_training.default",
    aten_neg_view="torch.ops.aten._neg_view.default",
    aten_embedding_bag="torch.ops.aten._embedding_bag.default",
    aten_to_copy="torch.ops.aten._to_copy.default",
    aten_unique2="torch.ops.aten._unique2.default",
    aten_unsafe_view="torch.ops.aten._unsafe_view.default",
    aten_weight_norm_interface="torch.ops.aten._weight_norm_interface.default",
)
add(
    "operators of attention, whose operations torch's counter knows",
    "operations of attention in a report",
    aten_flash_attention="torch.ops.aten._scaled_dot_product_flash_attention",
    aten_flash_attention_backward="torch.ops.aten._scaled_dot_product_flash_attention_backward",
    aten_flash_attention_for_cpu="torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
)
add(
    "the script that torch.jit.script has made of a function",
    "a graph through functions of torch.jit.script",
    script_of_function="torch.jit._state._try_get_jit_cached_function",
)
add(
    "collectives as operators of a graph",
    "a collective in a graph",
    wait_tensor="torch.ops._c10d_functional.wait_tensor.default",
    functional_all_reduce="torch.ops._c10d_functional.all_reduce.default",
    functional_broadcast="torch.ops._c10d_functional.broadcast.default",
    functional_all_gather="torch.ops._c10d_functional.all_gather_into_tensor.default",
    functional_reduce_scatter="torch.ops._c10d_functional.reduce_scatter_tensor.default",
    functional_all_reduce_of_several="torch.ops._c10d_functional.all_reduce_coalesced.default",
    functional_all_gather_of_several="torch.ops._c10d_functional.all_gather_into_tensor_coalesced.default",
    functional_reduce_scatter_of_several="torch.ops._c10d_functional.reduce_scatter_tensor_coalesced.default",
    functional_collectives="torch.distributed._functional_collectives",
    ShardingPropagator="torch.distributed.tensor._sharding_prop.ShardingPropagator",
    AsyncCollectiveTensor="torch.distributed._functional_collectives.AsyncCollectiveTensor",
    module_states="torch.distributed._composable_state._module_state_mapping",
)
add(
    "oneDNN's linear layer of 16-bit numbers",
    "oneDNN's linear layer with its bias in one call",
    is_mkldnn_bf16_supported="torch.ops.mkldnn._is_mkldnn_bf16_supported",
    is_mkldnn_fp16_supported="torch.ops.mkldnn._is_mkldnn_fp16_supported",
    linear_pointwise="torch.ops.mkldnn._linear_pointwise.default",
)
add("memory of CUDA graphs", "mode reduce-overhead", cuda_end_allocate_to_pool="torch._C._cuda_endAllocateToPool")
add(
    "optimizers and loaders that the callback follows",
    "the callback's compiled optimizer step",
    is_traceable_wrapper_subclass="torch.utils._python_dispatch.is_traceable_wrapper_subclass",
    global_optimizer_pre_hooks="torch.optim.optimizer._global_optimizer_pre_hooks",
    global_optimizer_post_hooks="torch.optim.optimizer._global_optimizer_post_hooks",
    BaseDataLoaderIter="torch.utils.data.dataloader._BaseDataLoaderIter",
)
