"""How the documentation is built: `python -m sphinx -W -b html docs <where to>`.

The pages are Markdown. `tutorial.md` is a notebook in text form, which is run while it
is built; the programs on the other pages are run by the tests. The reference, under
`api/`, is made of docstrings: see `reference.py`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
for folder in (DOCS, DOCS.parent):
    sys.path.insert(0, str(folder))
# The notebook runs in a process of its own, with the same tapejit.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(DOCS.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
)
os.environ["IPYKERNEL_CELL_NAME"] = "tutorial.py"  # what graphs and errors call a cell

project = "tapejit"
author = "the tapejit developers"
project_copyright = "the tapejit developers, Apache License 2.0"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "reference"]

exclude_patterns = ["_build", "*.py"]

# Markdown, and the notebook in it
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True

# The reference
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autosummary_generate = False
add_module_names = False
python_maximum_signature_line_length = 88

# How it looks
html_theme = "pydata_sphinx_theme"
html_title = "tapejit"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
