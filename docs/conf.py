"""Sphinx: the site that `make docs` builds. `docs/make_site.py` prepares the pages and starts Sphinx."""

import re

import headgate

project = "headgate"
author = "The headgate maintainers"
copyright = author  # noqa: A001 - the name that Sphinx reads
version = release = headgate.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}

myst_heading_anchors = 4  # the anchors that GitHub gives to headings
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
default_role = "code"
highlight_language = "none"  # blocks without a language are output
pygments_style = "default"  # every colour has a contrast of 4.5 or more on its background
pygments_dark_style = "github-dark"

html_theme = "furo"
html_title = f"headgate {release}"
html_static_path = ["_static"]
html_css_files = ["headgate.css"]
html_copy_source = False  # `docs/make_site.py` puts the pages beside the site, as Markdown
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def _as_rst(_app, _what, _name, _object, _options, lines):
    """Docstrings are plain text with `code` and indented programs; autodoc reads reStructuredText."""
    text, converted, before, literal, session = [], [], "", False, False

    def end_of_text():
        converted.extend(_inline("\n".join(text)).split("\n") if text else ())
        text.clear()

    for line in lines:
        indented = line.startswith("    ") and bool(line.strip())
        session = bool(line.strip()) and (session or line.lstrip().startswith(">>>"))
        if literal and line.strip() and not indented:
            literal = False
        if indented and not literal and not session and not before.strip():
            end_of_text()
            converted.extend(("::", ""))
            literal = True
        if literal or session:
            end_of_text()
            converted.append(line)
        else:
            text.append(line)
        before = line
    end_of_text()
    lines[:] = [*converted, ""]


def _inline(text):
    """Code in backticks as reStructuredText writes it; every other mark as the letter that it is."""
    escaped = re.sub(
        r"(`[^`]+`)|(\*|\||(?<=\w)_(?!\w))",
        lambda found: f"`{found[1]}`" if found[1] else f"\\{found[2]}",
        text,
    )
    return re.sub(r"``(?=\w)(?<=\w``)", r"``\\ ", escaped)


def setup(app):
    app.connect("autodoc-process-docstring", _as_rst)
