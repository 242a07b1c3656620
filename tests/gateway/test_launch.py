"""The environment that `headgate exec` makes for a program."""

from itertools import count

from headgate.gateway.guards import Refusal
from headgate.gateway.launch import addresses, child_environment, plan, with_flags
from headgate.gateway.upstreams import Routes, upstream

GATEWAY = "http://127.0.0.1:5"


def launched(environment, to=None):
    numbers = count(1)
    launch = plan(environment, to, lambda: f"token-{next(numbers)}")
    return launch, child_environment(environment, GATEWAY, launch)


def test_each_key_gets_a_token_of_its_own_and_is_bound_to_its_api():
    launch, child = launched(
        {"OPENAI_API_KEY": "sk-o", "ANTHROPIC_API_KEY": "sk-a", "GOOGLE_API_KEY": "sk-g"}
    )
    tokens = {child[name] for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY")}
    assert len(tokens) == 3
    assert not any(secret in child.values() for secret in ("sk-o", "sk-a", "sk-g"))
    apis = {each.name: each for each in launch.upstreams}
    fields = [("authorization", f"Bearer {child['OPENAI_API_KEY']}")]
    assert launch.keys.passage(apis["openai"], "/", dict(fields), fields).headers == [
        ("authorization", "Bearer sk-o")
    ]
    assert isinstance(launch.keys.passage(apis["anthropic"], "/", dict(fields), fields), Refusal)


def test_a_request_without_a_credential_never_gets_a_key():
    launch, _child = launched({"OPENAI_API_KEY": "sk-o"})
    apis = {each.name: each for each in launch.upstreams}
    assert launch.keys.passage(apis["openai"], "/", {}, []).status == 401
    assert launch.keys.passage(apis["anthropic"], "/", {}, []).headers == [], "no key is injected there"


def test_a_login_that_is_not_a_key_passes_unchanged():
    launch, child = launched({"ANTHROPIC_API_KEY": "", "OTHER": "1"})
    fields = [("Authorization", "Bearer sk-ant-oat-login")]
    apis = {each.name: each for each in launch.upstreams}
    passage = launch.keys.passage(apis["anthropic"], "/v1/messages", {"authorization": fields[0][1]}, fields)
    assert passage.headers == fields
    assert child["ANTHROPIC_API_KEY"] == ""


def test_one_api_gets_every_variable_and_every_key():
    launch, child = launched(
        {"OPENAI_API_KEY": "sk-o", "ANTHROPIC_API_KEY": "sk-a"}, to="http://127.0.0.1:9/api/v1"
    )
    assert child["OPENAI_BASE_URL"] == f"{GATEWAY}/v1"
    assert child["ANTHROPIC_BASE_URL"] == GATEWAY
    (api,) = launch.upstreams
    for variable, secret in (("OPENAI_API_KEY", "sk-o"), ("ANTHROPIC_API_KEY", "sk-a")):
        fields = [("x-api-key", child[variable])]
        assert launch.keys.passage(api, "/", dict(fields), fields).headers == [("x-api-key", secret)]
    assert api.address("/v1/chat/completions") == "http://127.0.0.1:9/api/v1/chat/completions"


def test_an_address_of_the_environment_is_where_the_gateway_sends_calls():
    given = {
        "OPENAI_BASE_URL": "https://llm.example/base/v1/",
        "ANTHROPIC_BASE_URL": "https://claude.example",
    }
    launch, child = launched(given)
    urls = {each.name: each.url for each in launch.upstreams}
    assert (urls["openai"], urls["anthropic"]) == ("https://llm.example/base", "https://claude.example")
    assert child["OPENAI_BASE_URL"] == f"{GATEWAY}/openai/v1"


def test_an_address_without_the_usual_path_leads_to_the_same_place():
    launch, child = launched({"OPENAI_BASE_URL": "https://llm.example/custom"})
    assert child["OPENAI_BASE_URL"] == f"{GATEWAY}/openai"
    api = next(each for each in launch.upstreams if each.name == "openai")
    assert api.address("/chat/completions") == "https://llm.example/custom/chat/completions"


def test_only_known_programs_get_flags():
    launch, _child = launched({})
    assert with_flags(["/usr/bin/codex", "x"], GATEWAY, launch) == [
        "/usr/bin/codex",
        "-c",
        f'openai_base_url="{GATEWAY}/openai/v1"',
        "x",
    ]
    assert with_flags(["claude", "-p", "x"], GATEWAY, launch) == ["claude", "-p", "x"]


def test_codex_with_a_login_of_chatgpt_is_led_to_the_api_of_that_login():
    launch = plan({"OPENAI_API_KEY": "sk-o"}, None, lambda: "a-long-token", chatgpt=True)
    flag = with_flags(["codex", "x"], GATEWAY, launch)[2]
    assert flag == f'openai_base_url="{GATEWAY}/chatgpt"'
    found, target = Routes(launch.upstreams).find("/chatgpt/responses?x=1")
    assert found.address(target) == "https://chatgpt.com/backend-api/codex/responses?x=1"
    passage = launch.keys.passage(found, target, {"authorization": "Bearer jwt"}, [])
    assert not isinstance(passage, Refusal), "its login passes unchanged"
    to_one = plan({}, "http://127.0.0.1:9", lambda: "a-long-token", chatgpt=True)
    assert with_flags(["codex"], GATEWAY, to_one)[2] == f'openai_base_url="{GATEWAY}/v1"'


def test_the_key_of_codex_is_hidden_like_others():
    launch, child = launched({"OPENAI_API_KEY": "sk-o", "CODEX_API_KEY": "sk-c"})
    openai = next(each for each in launch.upstreams if each.name == "openai")
    fields = [("authorization", f"Bearer {child['CODEX_API_KEY']}")]
    passage = launch.keys.passage(openai, "/v1/responses", dict(fields), fields)
    assert passage.headers == [("authorization", "Bearer sk-c")]


def test_programs_are_given_a_variable_for_a_known_api_and_the_address_for_another():
    assert addresses([upstream("", "https://api.anthropic.com")], GATEWAY) == [
        f"ANTHROPIC_BASE_URL={GATEWAY}"
    ]
    assert addresses([upstream("mine", "https://api.openai.com")], GATEWAY) == [
        f"OPENAI_BASE_URL={GATEWAY}/mine/v1"
    ]
    assert addresses([upstream("openai", "http://127.0.0.1:1")], GATEWAY) == [
        f"OPENAI_BASE_URL={GATEWAY}/openai/v1"
    ]
    assert addresses([upstream("local", "http://127.0.0.1:1")], GATEWAY) == [f"{GATEWAY}/local"]
    assert addresses([upstream("", "http://127.0.0.1:1")], GATEWAY) == []
