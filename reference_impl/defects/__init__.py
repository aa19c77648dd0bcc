"""Planted faults: each is a few lines that behave otherwise, at a seam that the engine really has."""

from kvfence.reference_impl.defects import (
    boundary as boundary,
)
from kvfence.reference_impl.defects import (
    common as common,
)
from kvfence.reference_impl.defects import (
    copy_on_write as copy_on_write,
)
from kvfence.reference_impl.defects import (
    flight as flight,
)
from kvfence.reference_impl.defects import (
    hashes as hashes,
)
from kvfence.reference_impl.defects import (
    index as index,
)
from kvfence.reference_impl.defects import (
    junk as junk,
)
from kvfence.reference_impl.defects import (
    keys as keys,
)
from kvfence.reference_impl.defects import (
    padding as padding,
)
from kvfence.reference_impl.defects import (
    preemption as preemption,
)
from kvfence.reference_impl.defects import (
    publish as publish,
)
from kvfence.reference_impl.defects import (
    quantised as quantised,
)
from kvfence.reference_impl.defects import (
    references as references,
)
from kvfence.reference_impl.defects import (
    resume as resume,
)
from kvfence.reference_impl.defects import (
    rollback as rollback,
)
from kvfence.reference_impl.defects import (
    slots as slots,
)
from kvfence.reference_impl.defects import (
    tables as tables,
)
from kvfence.reference_impl.defects import (
    tenants as tenants,
)
from kvfence.reference_impl.defects import (
    transfer as transfer,
)
from kvfence.reference_impl.defects import (
    weights as weights,
)
from kvfence.reference_impl.defects import (
    window as window,
)
from kvfence.reference_impl.defects.defect import DEFECTS, Defect, Sentinel

# isort: split
# The order of the registry is that of the imports, and does not change.
from kvfence.reference_impl.defects import (
    arrivals as arrivals,
)
from kvfence.reference_impl.defects import (
    holders as holders,
)
from kvfence.reference_impl.defects import (
    lookups as lookups,
)
from kvfence.reference_impl.defects import (
    passes as passes,
)

LATER: dict[str, str] = {
    "KEY-EMB": "prompts are tokens; media, which are embeddings, are the class KEY-MM",
    "REC-STATE": "no layer keeps a recurrent state",
    "MOVE": "K/V stay where they were written: nothing is shifted or compacted",
}
"""Fault classes whose seam the engine does not have yet, and why."""

__all__ = ["DEFECTS", "LATER", "Defect", "Sentinel"]
