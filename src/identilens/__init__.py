"""identilens: how much of attention and hidden states is determined by what a transformer computes."""

from identilens.attention.audit import audit as audit
from identilens.models import Lens as Lens
from identilens.models import bundled_model as bundled_model
from identilens.models import load as load
from identilens.results import Audit as Audit
