"""Bounded Dyck languages (Wen et al. 2023): models, training, constructions, pruning, measures of attention."""

from identilens.lab.dyck.balance import measure_balance as measure_balance
from identilens.lab.dyck.configuration import DyckConfig as DyckConfig
from identilens.lab.dyck.evaluation import support_accuracy as support_accuracy
from identilens.lab.dyck.language import Dyck as Dyck
from identilens.lab.dyck.language import with_start as with_start
from identilens.lab.dyck.modeling import DyckForCausalLM as DyckForCausalLM
from identilens.lab.dyck.parsing import next_token_distribution as next_token_distribution
from identilens.lab.dyck.parsing import parse as parse
from identilens.lab.dyck.settings import DyckSetting as DyckSetting
from identilens.lab.dyck.settings import DyckTraining as DyckTraining
from identilens.lab.dyck.sufficiency import balanced_scores as balanced_scores
from identilens.lab.dyck.sufficiency import sufficient_model as sufficient_model
from identilens.lab.dyck.training import train_models as train_models
from identilens.lab.dyck.uniform import uniform_transformer as uniform_transformer
from identilens.lab.dyck.variation import random_baselines as random_baselines
