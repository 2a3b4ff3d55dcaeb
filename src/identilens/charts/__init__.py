"""The drawing kit: charts over data frames, token maps, and pages that hold them; it knows no study."""

from identilens.charts.cells import heat as heat
from identilens.charts.cells import token_map as token_map
from identilens.charts.kit import bars as bars
from identilens.charts.kit import boxes as boxes
from identilens.charts.kit import choose as choose
from identilens.charts.kit import intervals as intervals
from identilens.charts.kit import lines as lines
from identilens.charts.kit import rule as rule
from identilens.charts.kit import scatter as scatter
from identilens.charts.kit import strip as strip
from identilens.charts.page import Page as Page
from identilens.charts.page import Section as Section
from identilens.charts.page import render_page as render_page
from identilens.charts.page import write_page as write_page
from identilens.charts.palette import theme as theme
from identilens.charts.save import save_charts as save_charts
from identilens.charts.token_lines import Mark as Mark
from identilens.charts.token_lines import MarkedToken as MarkedToken
from identilens.charts.token_lines import TokenLine as TokenLine
from identilens.charts.viewer import TokenMap as TokenMap
