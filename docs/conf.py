"""Sphinx configuration: a site from the Markdown files that are read on GitHub (``make docs``).

The repository's root is the source folder, so that a relative link means the same file here and there; what
is linked but is no page is offered for download. README.md is the home page. Nothing is fetched from other
hosts, neither by the build nor by the pages: formulas become MathML, which browsers show themselves. Anything
that Sphinx warns of fails the build: missing files and headings, pages outside the navigation.
"""

from __future__ import annotations

import re
import shutil
from importlib.resources import files
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger
from sphinx.writers.html5 import HTML5Translator

import fltrain

# Import it first: pydantic refuses its models under autodoc, which imports modules as type checkers do.
import fltrain.runs.record

LOG = getLogger(__name__)

# The navigation: below a page, captions with the pages under them. Sphinx asks for every page to be in it.
NAVIGATION = {
    "README": {
        "Start": ["docs/README", "docs/tutorial"],
        "Results": [
            "docs/results",
            "docs/artifact",
            "published/README",
            "docs/reproduce",
            "docs/protocol",
            "docs/protocol-audit",
            "docs/compare",
            "docs/python",
            "docs/papers/*",
            "docs/inversion",
            "docs/fair-table",
            "docs/replication",
            "docs/replication-audit",
        ],
        "Extend": [
            "docs/add-a-method",
            "docs/add-a-network",
            "docs/add-a-dataset",
            "docs/add-an-experiment",
            "docs/tune-settings",
        ],
        "Running": [
            "docs/gpus",
            "docs/cluster",
            "docs/interruptions",
            "docs/records",
            "docs/performance",
        ],
        "Reference": [
            "docs/methods/README",
            "docs/method-interface",
            "docs/configuration",
            "docs/commands",
            "docs/errors",
            "docs/glossary",
            "docs/design",
            "docs/comparison",
            "docs/api/README",
            "benchmarks/README",
            "CHANGELOG",
        ],
    },
    "docs/methods/README": {"": ["docs/methods/*"]},
    "docs/api/README": {"": ["docs/api/*"]},
}

smartquotes_action = "D"  # dashes before what a parameter is; quotes as they were written
project = author = "fltrain"
version = release = fltrain.__version__
copyright = "the fltrain developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]

root_doc = "README"
include_patterns = ["README.md", "CHANGELOG.md", "benchmarks/README.md", "published/README.md", "docs/**.md"]
# Folders that are not even looked through: installed packages, records, sources.
exclude_patterns = [".*", "benchmarks/*/**", "config", "fltrain", "results", "site", "tests", "workflow"]

# Markdown as GitHub reads it: its names of headings, dollars around formulas, nothing that only MyST knows.
myst_heading_anchors = 6
myst_enable_extensions = ["dollarmath"]
myst_dmath_double_inline = True
myst_disable_syntax = ["myst_block_break", "myst_line_comment", "myst_target"]

# Literal blocks ("::") in docstrings are not Python.
highlight_language = "none"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "exclude-members": "model_config, model_post_init"}
napoleon_use_ivar = True
python_maximum_signature_line_length = 90
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "fltrain"
# Few machines have a font that can set formulas.
html_static_path = ["site.css", str(files("ziamath") / "fonts" / "STIXTwoMath-Regular.ttf")]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False


def with_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Append to a page what Sphinx has to know of the pages under it; nothing of that is seen in its text."""
    for caption, pages in NAVIGATION.get(page, {}).items():
        options = [":hidden:", ":glob:", *([f":caption: {caption}"] if caption else [])]
        source[0] += "\n\n" + "\n".join(["```{toctree}", *options, *(f"/{path}" for path in pages), "```"])


def as_mathml(translator: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    """Write a formula; one that is not understood in full fails the build."""
    text = node.astext()
    inline = isinstance(node, nodes.math)
    formula = convert(text.replace(r"\arg", r"\operatorname{arg}"), display="inline" if inline else "block")
    if unknown := re.findall(r"\\\w+", formula):
        LOG.warning("not understood: %s in %r", ", ".join(unknown), text, location=node)
    # As in LaTeX, only bars after \left or \right grow with their content.
    formula = re.sub(r"<mo>(&#x02016;|&#x0007C;)</mo>", r'<mo stretchy="false">\1</mo>', formula)
    translator.body.append(formula if inline else f'<div class="math">{formula}</div>')
    raise nodes.SkipNode


def without_factories(
    app: Sphinx,
    kind: str,
    name: str,
    item: object,
    options: object,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    """Write the default of a dataclass's field such that the signature is Python, and can be laid out."""
    return signature and signature.replace("<factory>", "..."), returned


def with_index(app: Sphinx, exception: Exception | None) -> None:
    """Let the home page also be what a server shows for the folder."""
    if exception is None and app.builder.name == "html":
        shutil.copyfile(Path(app.outdir) / "README.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> None:
    """Connect the above; Sphinx calls this."""
    app.add_lexer("csv", TextLexer)
    app.add_html_math_renderer("mathml", (as_mathml, None), (as_mathml, None))
    app.connect("source-read", with_navigation)
    app.connect("autodoc-process-signature", without_factories)
    app.connect("build-finished", with_index)
