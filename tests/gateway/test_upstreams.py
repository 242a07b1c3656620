"""Which API a request goes to, and by which address."""

import pytest

from headgate.errors import InvalidConfig
from headgate.gateway.upstreams import KNOWN, Routes, upstream


@pytest.mark.parametrize(
    ("url", "target", "address"),
    [
        ("https://a.example", "/v1/x?y=%20", "https://a.example/v1/x?y=%20"),
        ("https://a.example/", "/", "https://a.example/"),
        ("https://a.example/v1", "/v1/x", "https://a.example/v1/x"),
        ("https://a.example/v1", "/x", "https://a.example/v1/x"),
        ("https://a.example/api/v1", "/v1/x", "https://a.example/api/v1/x"),
        ("https://a.example/api/v1", "/api/v1/x", "https://a.example/api/v1/x"),
        ("https://a.example/v1", "/v1beta/x", "https://a.example/v1/v1beta/x"),
        ("https://a.example:444", "//b.example/x", "https://a.example:444//b.example/x"),
        ("http://a.example", "/@b.example/", "http://a.example/@b.example/"),
    ],
)
def test_an_address_is_the_api_and_the_path_of_the_request(url, target, address):
    assert upstream("", url).address(target) == address


def test_names_are_the_first_segment_of_a_path_and_go_no_further():
    routes = Routes([upstream("openai"), upstream("local", "http://127.0.0.1:9")])
    assert [routes.find(path)[0].name for path in ("/openai/v1", "/local/x", "/local?x")] == [
        "openai",
        "local",
        "local",
    ]
    assert routes.find("/openai/v1/models?a=/b")[1] == "/v1/models?a=/b"
    assert routes.find("/openai")[1] == "/"
    assert routes.find("/openai?a=b/c")[1] == "/?a=b/c"
    assert routes.find("/v1/models") is None
    assert routes.find("/openai2/v1") is None


def test_what_is_known_about_an_api_is_found_by_its_name_or_its_host():
    for name, known in KNOWN.items():
        assert upstream(name).key_env == known.key_env
        assert upstream("mine", known.url).header == known.header
    assert upstream("", "https://api.openai.com.evil.example").key_env == ""
    assert upstream("x", "https://u.example", key_env="K", header="X-Key").header == "x-key"


@pytest.mark.parametrize(
    "url",
    ["", "a.example", "ftp://a", "https://", "https://u:p@a", "https://a/?q", "http://a b", "http://a:0"],
)
def test_what_is_not_the_address_of_an_api_is_an_error(url):
    with pytest.raises(InvalidConfig):
        upstream("x", url or " ")
    with pytest.raises(InvalidConfig, match="is not a name for a path"):
        upstream("a/b", "https://a")


def test_a_name_that_is_not_of_a_known_api_needs_a_url():
    with pytest.raises(InvalidConfig, match=r"'mine' is not a known API \(openai, .*write NAME=URL"):
        upstream("mine")


@pytest.mark.parametrize("names", [("", ""), ("a", "a"), ("", "a", "")])
def test_two_apis_cannot_have_the_same_path(names):
    with pytest.raises(InvalidConfig, match="two upstreams have the same path"):
        Routes([upstream(name, f"https://{number}.example") for number, name in enumerate(names)])


def test_a_gateway_without_an_api_is_an_error_that_says_how_to_name_one():
    with pytest.raises(InvalidConfig, match="give --to URL"):
        Routes([])
