from .cli.again import rerun as rerun
from .demo.examples import examples as examples
from .dyck.language import Dyck as Dyck
from .dyck.modeling import DyckForCausalLM as DyckForCausalLM
from .encoder.configuration import IdentifiableEncoderConfig as IdentifiableEncoderConfig
from .encoder.modeling import (
    IdentifiableEncoderForSequenceClassification as IdentifiableEncoderForSequenceClassification,
)
from .encoder.modeling import IdentifiableEncoderModel as IdentifiableEncoderModel
from .models.attentions import attentions as attentions
from .models.bundled import bundled_model as bundled_model
from .models.lens import Lens as Lens
from .models.loading import load as load
from .models.media import Audio as Audio
from .models.media import read_audio as read_audio
from .models.media import read_image as read_image
from .models.registration import register_attention as register_attention
from .runs.conllu import read_conllu as read_conllu
from .runs.engines.cluster import Ray as Ray
from .runs.engines.local import Local as Local
from .runs.texts import read_texts as read_texts
from .studies.alternatives.result import Alternatives as Alternatives
from .studies.alternatives.study import alternatives as alternatives
from .studies.audit.result import Audit as Audit
from .studies.audit.study import audit as audit
from .studies.certify.result import Certainty as Certainty
from .studies.certify.study import certify as certify
from .studies.comparison import Comparison as Comparison
from .studies.comparison import compare as compare
from .studies.dyck_analyse.study import analyse_dyck as analyse_dyck
from .studies.dyck_construct.result import Constructions as Constructions
from .studies.dyck_construct.study import construct_dyck as construct_dyck
from .studies.dyck_prune.result import Prunings as Prunings
from .studies.dyck_prune.study import prune_dyck as prune_dyck
from .studies.dyck_train.result import DyckRuns as DyckRuns
from .studies.dyck_train.study import train_dyck as train_dyck
from .studies.faithfulness.result import Faithfulness as Faithfulness
from .studies.faithfulness.study import faithfulness as faithfulness
from .studies.logit_ranks.result import LogitRanks as LogitRanks
from .studies.logit_ranks.study import logit_ranks as logit_ranks
from .studies.mixing.result import Mixing as Mixing
from .studies.mixing.study import mixing as mixing
from .studies.rationales.result import Rationales as Rationales
from .studies.rationales.study import rationales as rationales
from .studies.reports import load_result as load_result
from .studies.reports import write_report as write_report
from .studies.reversal.result import Reversal as Reversal
from .studies.reversal.study import reversal as reversal
from .studies.structure.result import Structure as Structure
from .studies.structure.study import structure as structure
from .studies.sweep.result import EncoderSweep as EncoderSweep
from .studies.sweep.study import sweep as sweep
from .studies.tokens.result import TokenIdentifiability as TokenIdentifiability
from .studies.tokens.study import token_identifiability as token_identifiability
from .studies.train.result import EncoderRun as EncoderRun
from .studies.train.study import train as train

__version__: str
