"""Operations that raise by what their operands hold: by the elements of matrices, by numbers, and by places."""

from __future__ import annotations

OF_MATRICES = frozenset(
    """
    cholesky cholesky_ex cholesky_inverse cholesky_solve eig eigh eigvals eigvalsh inv inv_ex inverse ldl_factor ldl_factor_ex ldl_solve lstsq
    lu_factor lu_factor_ex lu_solve matrix_power matrix_rank pinv pinverse solve solve_ex solve_triangular svd svdvals tensorinv tensorsolve
    """.split()
)
OF_NUMBERS = frozenset(
    """
    bernoulli bernoulli_ binary_cross_entropy bincount binomial cauchy_ ctc_loss exponential_ geometric_ histc log_normal_ masked_scatter masked_scatter_
    max_unpool1d max_unpool2d max_unpool3d multinomial nanquantile normal normal_ one_hot poisson quantile random_ repeat_interleave segment_reduce uniform_
    """.split()
)
AT_PLACES = frozenset(
    """
    cross_entropy embedding embedding_bag gather index_add index_add_ index_copy index_copy_ index_fill index_fill_ index_put index_put_ index_reduce
    index_reduce_ index_select multi_margin_loss multilabel_margin_loss nll_loss put put_ scatter scatter_ scatter_add scatter_add_ scatter_reduce
    scatter_reduce_ take take_along_dim
    """.split()
)
"""These raise on CPUs alone."""
RAISING = OF_MATRICES | OF_NUMBERS | AT_PLACES
DIVISIONS = frozenset("floordiv ifloordiv mod imod floor_divide floor_divide_ remainder remainder_ fmod fmod_ div div_ divide divide_".split())
"""Of ints, on CPUs: by zero."""
FILLS = frozenset("masked_fill masked_fill_".split())
"""By a tensor of a type with greater numbers, on CPUs."""
