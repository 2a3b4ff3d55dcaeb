"""Figures and self-contained HTML made from results; knows no model."""

from identilens.report.alternatives_figures import save_alternatives_figures as save_alternatives_figures
from identilens.report.alternatives_report import write_alternatives_report as write_alternatives_report
from identilens.report.dyck_figures import save_dyck_figures as save_dyck_figures
from identilens.report.dyck_report import write_dyck_report as write_dyck_report
from identilens.report.intervals_figures import save_intervals_figures as save_intervals_figures
from identilens.report.intervals_report import write_intervals_report as write_intervals_report
from identilens.report.logit_rank_figures import save_logit_rank_figures as save_logit_rank_figures
from identilens.report.results import save_figures as save_figures
from identilens.report.results import write_report as write_report
from identilens.report.structure_figures import save_structure_figures as save_structure_figures
from identilens.report.structure_report import write_structure_report as write_structure_report
