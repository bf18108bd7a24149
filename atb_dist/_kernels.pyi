from atb_dist._lcal import Comm

# Addresses are Tensor.data_ptr(), sizes and strides count elements, types are ops.cpu.DTYPES.
# Every function raises ValueError, in one line, before it writes anything.
def simd_level() -> str: ...
def num_threads() -> int: ...
def set_num_threads(count: int) -> None: ...
def linear(
    x: int, x_stride: int, weight: int, weight_stride: int, weight_type: int, bias: int,
    bias_type: int, y: int, rows: int, columns: int, features: int, leaves: int, borders: int, /,
) -> None: ...  # fmt: skip
def linear_quant(
    x: int, x_stride: int, weight: int, weight_stride: int, weight_type: int, bias: int,
    bias_type: int, y: int, rows: int, columns: int, features: int, leaves: int, borders: int,
    scales: int, scale_stride: int, group: int, /,
) -> None: ...  # fmt: skip
def linear_w8a8(
    x: int, x_stride: int, weight: int, weight_stride: int, bias: int, y: int, rows: int,
    columns: int, features: int, leaves: int, borders: int, scales: int, scale_stride: int, /,
) -> None: ...  # fmt: skip
def grouped_matmul(
    x: int, x_stride: int, x_rows: int, weights: int, weight_stride: int, weight_type: int,
    scales: int, scale_stride: int, group: int, starts: int, count: int, gather: int, y: int,
    columns: int, features: int, add: bool, leaves: int, borders: int, /,
) -> None: ...  # fmt: skip
def combine(
    x: int, x_stride: int, scales: int, starts: int, order: int, y: int, rows: int, width: int, /,
) -> None: ...  # fmt: skip
def all_reduce_rms_norm(
    comm: Comm,
    x: int,
    residual: int,
    weight: int,
    weight_type: int,
    normed: int,
    rows: int,
    width: int,
    eps: float,
    /,
) -> None: ...
def rms_norm(
    x: int, x_stride: int, weight: int, weight_type: int, y: int, rows: int, width: int,
    eps: float, /,
) -> None: ...  # fmt: skip
def rope(
    heads: int, row_stride: int, head_stride: int, positions: int, cos_sin: int,
    max_position: int, rows: int, num_heads: int, size: int, /,
) -> None: ...  # fmt: skip
def swiglu(x: int, x_stride: int, y: int, rows: int, width: int, /) -> None: ...
def embedding(
    ids: int, weight: int, weight_stride: int, weight_type: int, y: int, rows: int, width: int,
    first_id: int, count: int, /,
) -> None: ...  # fmt: skip
def cache_write(
    x: int, row_stride: int, head_stride: int, cache: int, cache_type: int, num_slots: int,
    slots: int, rows: int, num_heads: int, size: int, /,
) -> None: ...  # fmt: skip
def paged_attention(
    q: int, q_row_stride: int, q_head_stride: int, k_cache: int, v_cache: int, cache_type: int,
    num_blocks: int, block_size: int, kv_heads: int, block_tables: int, table_stride: int,
    table_width: int, query_starts: int, context_lens: int, out: int, rows: int, sequences: int,
    heads: int, size: int, scale: float, /,
) -> None: ...  # fmt: skip
