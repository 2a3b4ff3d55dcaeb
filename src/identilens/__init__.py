"""identilens: how much of attention and hidden states is determined by what a transformer computes."""

from identilens.dyck.language import Dyck as Dyck
from identilens.dyck.modeling import DyckForCausalLM as DyckForCausalLM
from identilens.encoder import IdentifiableEncoderConfig as IdentifiableEncoderConfig
from identilens.encoder import (
    IdentifiableEncoderForSequenceClassification as IdentifiableEncoderForSequenceClassification,
)
from identilens.encoder import IdentifiableEncoderModel as IdentifiableEncoderModel
from identilens.models import Lens as Lens
from identilens.models import bundled_model as bundled_model
from identilens.models import load as load
from identilens.results import Alternatives as Alternatives
from identilens.results import Audit as Audit
from identilens.results import DyckRuns as DyckRuns
from identilens.results import Intervals as Intervals
from identilens.results import LogitRanks as LogitRanks
from identilens.results import Mixing as Mixing
from identilens.results import Structure as Structure
from identilens.results import TokenIdentifiability as TokenIdentifiability
from identilens.studies.alternatives.study import alternatives as alternatives
from identilens.studies.audit.study import audit as audit
from identilens.studies.dyck_train.study import train_dyck as train_dyck
from identilens.studies.intervals.study import intervals as intervals
from identilens.studies.logit_ranks.study import logit_ranks as logit_ranks
from identilens.studies.mixing.study import mixing as mixing
from identilens.studies.structure.study import structure as structure
from identilens.studies.tokens.study import token_identifiability as token_identifiability
