"""What a program must be for the native executor: shapes, formats and windows. After this, native code trusts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..errors import ConfigError
from ..formats import WeightType
from ..program import (
    Add,
    Attend,
    Buffer,
    Embed,
    Gate,
    GatedDeltaNet,
    KvGroup,
    KvWrite,
    Linear,
    Moe,
    Program,
    RecurrentGroup,
    RmsNorm,
    Rope,
    Rows,
    ScaleCap,
    SelectLogitsRows,
    ShortConv,
    Tap,
    Weight,
)

_VECTOR_TYPES = (WeightType.F32, WeightType.F16, WeightType.BF16)


def check_program(program: Program) -> None:
    """Raises ConfigError naming the first op that cannot be run."""
    for at, op in enumerate(program.ops):
        if type(op) not in _CHECKS:
            raise ConfigError(f"the cpu backend lacks the op {type(op).__name__} ({program.name})")
        if isinstance(op, ShortConv | GatedDeltaNet) and op.group is not program.recurrent:
            raise ConfigError(f"{program.name}: op {at} ({type(op).__name__}): a group that is not the program's")
        for holds, fault in _CHECKS[type(op)](op):
            if not holds:
                raise ConfigError(f"{program.name}: op {at} ({type(op).__name__}): {fault}")
    for group in program.kv_groups:
        if group.key_dim % 8 or group.value_dim % 8:
            raise ConfigError(f"{program.name}: KV group {group.name}: head sizes must be multiples of 8")


Condition = tuple[bool, str]


def _nothing(op: object) -> Iterator[Condition]:
    yield from ()


def _matrix(weight: Weight, out: int, width: int, experts: int | None = None) -> Iterator[Condition]:
    shape = (out, width) if experts is None else (experts, out, width)
    yield weight.shape == shape, f"{weight.name} has shape {weight.shape}, not {shape}"
    size = weight.row_bytes
    for dim in weight.shape[:-1]:
        size *= dim
    yield weight.data.size == size, f"{weight.name} has {weight.data.size} bytes, not {size}"


def _vector(weight: Weight | None, size: int) -> Iterator[Condition]:
    if weight is not None:
        yield weight.shape == (size,), f"{weight.name} has shape {weight.shape}, not ({size},)"
        yield weight.type in _VECTOR_TYPES, f"{weight.name} is {weight.type.name}; vectors are F32, F16 or BF16"
        yield weight.data.size == weight.row_bytes, f"{weight.name} has {weight.data.size} bytes"


def _same(*buffers: Buffer | None) -> Iterator[Condition]:
    shapes = {(b.width, b.rows) for b in buffers if b is not None}
    yield len(shapes) == 1, f"buffers differ in shape: {[b.name for b in buffers if b is not None]}"


def _embed(op: Embed) -> Iterator[Condition]:
    yield from _matrix(op.table, op.table.shape[0], op.out.width)
    yield op.out.rows is Rows.ALL, "embeds rows that want logits only"


def _norm(op: RmsNorm) -> Iterator[Condition]:
    yield from _same(op.out, op.src)
    yield op.groups > 0 and op.src.width % op.groups == 0, f"{op.groups} groups do not divide {op.src.width}"
    yield from _vector(op.weight, op.src.width // max(1, op.groups))


def _linear(op: Linear) -> Iterator[Condition]:
    yield from _matrix(op.weight, op.out.width, op.src.width)
    yield from _vector(op.bias, op.out.width)
    yield from _same(op.out, op.residual)
    yield op.out.rows is op.src.rows, "reads other rows than it writes"


def _add(op: Add) -> Iterator[Condition]:
    yield from _same(op.out, op.a, op.b)


def _gate(op: Gate) -> Iterator[Condition]:
    yield from _same(op.out, op.gate, op.up)


def _rope(op: Rope) -> Iterator[Condition]:
    yield op.buffer.rows is Rows.ALL, "rotates rows that want logits only"
    yield op.buffer.width % op.heads == 0, f"{op.heads} heads do not divide {op.buffer.width}"
    yield op.table.num_rotated <= op.buffer.width // op.heads, "rotates more than a head"


def _kv(group: KvGroup, layer: int) -> Iterator[Condition]:
    yield 0 <= layer < group.num_layers, f"KV group {group.name} has no layer {layer}"


def _kv_write(op: KvWrite) -> Iterator[Condition]:
    yield from _kv(op.group, op.layer)
    yield op.key.width == op.group.kv_heads * op.group.key_dim, "keys of another width than the group's"
    yield op.value.width == op.group.kv_heads * op.group.value_dim, "values of another width than the group's"
    yield op.key.rows is op.value.rows is Rows.ALL, "stores rows that want logits only"


def _attend(op: Attend) -> Iterator[Condition]:
    group = op.group
    yield from _kv(group, op.layer)
    yield op.heads % group.kv_heads == 0, f"{op.heads} heads over {group.kv_heads} KV heads"
    yield op.query.width == op.heads * group.key_dim, "queries of another width than the heads'"
    yield op.out.width == op.heads * group.value_dim, "an output of another width than the heads'"
    yield op.query.rows is op.out.rows is Rows.ALL, "attends for rows that want logits only"
    yield op.window is None or op.window > 0, f"window {op.window}"
    yield (
        (group.window is None or (op.window is not None and op.window <= group.window)),
        f"looks further back than the window of KV group {group.name}",
    )
    yield from _vector(op.sinks, op.heads)


def _recurrent(group: RecurrentGroup, layer: int, *buffers: Buffer) -> Iterator[Condition]:
    yield 0 <= layer < group.num_layers, f"recurrent group {group.name} has no layer {layer}"
    yield group.kernel > 1, f"a convolution over {group.kernel} rows"
    yield group.value_dim % 16 == 0, f"values of {group.value_dim}, not of a multiple of 16"
    yield group.value_heads % group.key_heads == 0, f"{group.value_heads} value heads over {group.key_heads} key heads"
    yield all(buffer.rows is Rows.ALL for buffer in buffers), "runs on rows that want logits only"


def _short_conv(op: ShortConv) -> Iterator[Condition]:
    group = op.group
    yield from _recurrent(group, op.layer, op.out, op.src)
    yield op.out.width == op.src.width == group.channels, f"rows of another width than {group.channels} channels"
    yield op.out is not op.src, "overwrites rows that later ones read"
    weight = op.weight
    yield weight.shape == (group.channels, group.kernel), f"{weight.name} has shape {weight.shape}"
    yield weight.type in _VECTOR_TYPES, f"{weight.name} is {weight.type.name}; taps are F32, F16 or BF16"
    yield weight.data.size == group.channels * weight.row_bytes, f"{weight.name} has {weight.data.size} bytes"


def _delta(op: GatedDeltaNet) -> Iterator[Condition]:
    group = op.group
    yield from _recurrent(group, op.layer, op.out, op.mixed, op.alpha, op.beta)
    yield op.mixed.width == group.channels, f"rows of another width than {group.channels} channels"
    yield op.out.width == group.value_heads * group.value_dim, "an output of another width than the heads'"
    yield op.alpha.width == op.beta.width == group.value_heads, "gates for another number of heads"
    yield from _vector(op.rate, group.value_heads)
    yield from _vector(op.dt, group.value_heads)


def _moe(op: Moe) -> Iterator[Condition]:
    experts, hidden, width = op.gate.shape if len(op.gate.shape) == 3 else (0, 0, 0)
    yield from _matrix(op.gate, hidden, op.src.width, experts)
    yield from _matrix(op.up, hidden, op.src.width, experts)
    yield from _matrix(op.down, op.out.width, hidden, experts)
    yield op.router_logits.width == experts, f"{op.router_logits.width} router logits for {experts} experts"
    yield 0 < op.top_k <= experts, f"{op.top_k} of {experts} experts"
    yield from _vector(op.selection_bias, experts)
    yield from _same(op.out, op.residual)
    yield width == op.src.width and op.out.rows is op.src.rows is Rows.ALL, "reads other rows than it writes"


def _select(op: SelectLogitsRows) -> Iterator[Condition]:
    yield op.out.width == op.src.width, "buffers differ in width"
    yield op.out.rows is Rows.LOGITS and op.src.rows is Rows.ALL, "selects from or into the wrong rows"


_CHECKS: dict[type, Callable[..., Iterator[Condition]]] = {
    Embed: _embed,
    RmsNorm: _norm,
    Linear: _linear,
    Add: _add,
    Gate: _gate,
    Rope: _rope,
    KvWrite: _kv_write,
    Attend: _attend,
    ShortConv: _short_conv,
    GatedDeltaNet: _delta,
    Moe: _moe,
    SelectLogitsRows: _select,
    ScaleCap: _nothing,
    Tap: _nothing,
}
