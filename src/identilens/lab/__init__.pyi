from .dyck.construct import construct_dyck as construct_dyck
from .dyck.language import Dyck as Dyck
from .dyck.modeling import DyckForCausalLM as DyckForCausalLM
from .dyck.prune import prune_dyck as prune_dyck
from .dyck.train.result import DyckRuns as DyckRuns
from .dyck.train.study import train_dyck as train_dyck
from .encoder.configuration import IdentifiableEncoderConfig as IdentifiableEncoderConfig
from .encoder.logit_ranks import logit_ranks as logit_ranks
from .encoder.modeling import (
    IdentifiableEncoderForSequenceClassification as IdentifiableEncoderForSequenceClassification,
)
from .encoder.modeling import IdentifiableEncoderModel as IdentifiableEncoderModel
from .encoder.sweep.study import EncoderSweep as EncoderSweep
from .encoder.sweep.study import sweep as sweep
from .encoder.train.study import EncoderRun as EncoderRun
from .encoder.train.study import train as train
from .reversal.result import Reversal as Reversal
from .reversal.study import train_reversal as train_reversal
