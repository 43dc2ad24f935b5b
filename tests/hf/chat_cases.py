"""Conversations, and small templates, that rendering is compared on."""

WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "The weather in a \"city\" <now> & today's",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "M\u00fcnchen, \u6771\u4eac"},
        "days": {"type": "integer", "minimum": 1, "default": 1.5}}, "required": ["city"]},
    "return": {"type": "string"}}}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "", "parameters": {}}}
CALL = {"id": "abcdefghi", "type": "function",
        "function": {"name": "weather", "arguments": {"city": "Z\u00fcrich", "days": 2}}}
CALL_TEXT = {"id": "123456789", "type": "function",
             "function": {"name": "weather", "arguments": "{\"city\": \"Bern\"}"}}


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


USER = turn("user", "  Hello, w\u00f6rld! {{ not_a_tag }} 'quoted' \"twice\"\n")
SYSTEM = turn("system", " Be brief.\n\n")
GREEK = turn("user", "\u0395\u03bd\u03c4\u03ac\u03be\u03b5\u03b9")
ANSWER = turn("assistant", "\nHi \U0001F600\n")
THOUGHT = turn("assistant", "<think>\nhm\nhm\n</think>\n\nSo: 4")
TOOL_CALL = turn("assistant", "", tool_calls=[CALL])
TOOL = turn("tool", "{\"degrees\": 21}", tool_call_id="abcdefghi", name="weather")

CONVERSATIONS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, ANSWER, turn("user", "And 2+2?"), THOUGHT, GREEK],
    "open": [USER, THOUGHT],
    "twice": [USER, USER],
    "late_system": [USER, ANSWER, SYSTEM, USER],
    "tool": [USER, TOOL_CALL, TOOL, ANSWER, USER],
    "tools": [SYSTEM, USER, turn("assistant", "Let me see.", tool_calls=[CALL, CALL_TEXT]), TOOL,
              turn("tool", "7 degrees", tool_call_id="123456789")],
    "reasoning": [USER, turn("assistant", "4", reasoning_content="\n2+2\n"), USER,
                  turn("assistant", "5", reasoning_content="")],
    "parts": [turn("user", [{"type": "text", "text": "see"}, {"type": "image", "url": "x"},
                            {"type": "text", "text": "this"}]), turn("assistant", None)],
    "stop": [USER, turn("stop", "x"), USER],
    "none": [],
    "snippet": [turn("user", "a b")],
}

OPTIONS = [
    {},
    {"prompt": False},
    {"tools": [WEATHER, CLOCK]},
    {"tools": [WEATHER],
     "variables": {"tools_in_user_message": False, "date_string": "1 Jan 2025"}},
    {"variables": {"enable_thinking": False, "builtin_tools": ["weather", "code_interpreter"]}},
]

# One line each: what the language means. "messages" is [{"role": "user", "content": "a b"}].
SNIPPETS = [
    # white space
    'a \n  {% if true %}  \n b {% endif %}  \n c\n',
    'a\n  {%- if true -%}  \n b {%- endif %}\n\n c',
    'a\n  {%+ if true %}x{% endif +%}\nb',
    '  {# c #}  \n  {#- c -#}  \n  {{ 1 }}  \n',
    '{{ 1 -}}  \n x',
    'x  \n {{- 1 }}',
    'x\r\ny\rz\r\n',
    'a{% if 1 %}\n\n{% endif %}\n\nb\n\n',
    '\t{% set x = 1 %} {% set y = 2 %}\n|',
    'x {# {{ y }} #}  {% if 1 %}\n  {% if 1 %}\n  {% endif %}\n{% endif %}y',
    '{{ \'}}\' }}{{ "%}" }}',
    # literals and printing
    '{{ 1 }} {{ 1.0 }} {{ 1.5 }} {{ 1e }}',
    '{{ 1.25 }}{{ true }}{{ False }}{{ none }}{{ missing }}|',
    "{{ [1, 'a', none, true, 2.5, [], {}] }}",
    '{{ {\'a\': 1, \'b\': ["it\'s"], \'c\': \'x\\n"\'} }}',
    '{{ \'a\' \'b\' "c" }}',
    "{{ '\\x41\\u00e9\\U0001F600\\n\\t\\\\ \\q \\101' }}",
    '{{ (1) }}{{ [1,] }}',
    '{{ 10 // 3 }} {{ -10 // 3 }} {{ 10 % 3 }} {{ -10 % 3 }} {{ 7 / 2 }} {{ 2 * 3 + 4 - 1 }}',
    '{{ 0.1 + 0.2 }} {{ 1 / 3 }} {{ 4 / 2 }}',
    '{{ 12345678.9 * 1000000000 }} {{ 0.0001 }} {{ 0.00001 }}',
    '{{ - 3 }} {{ +3 }} {{ -(-3) }}',
    "{{ 'ab' * 3 }} {{ 'a' ~ 1 ~ none ~ missing ~ true }}",
    '{{ [1] + [2] }}',
    "{{ 'a' + 1 }}",
    '{{ 1 + missing }}',
    '{{ true + 1 }}',
    '{{ 1 // 0 }}',
    '{{ 5.5 // 2 }} {{ 5.5 % 2 }}',
    # comparison and logic
    "{{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' == 'a' }} {{ [1,2] == [1,2] }} {{ {'a':1} == {'a':1} "
    '}}',
    "{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 'a' < 'b' }} {{ 'a' < 1 }}",
    '{{ not 1 == 2 }} {{ not not 1 }}',
    "{{ 0 or 'x' }} {{ 1 and 'y' }} {{ '' or none }} {{ 1 and 0 }}",
    '{{ missing == none }} {{ none is none }}',
    "{{ 'b' in 'abc' }} {{ 1 in [1] }} {{ 'a' in {'a': 1} }} {{ 'x' not in 'abc' }} {{ 'x' in "
    'missing }}',
    "{{ 1 in 'abc' }}",
    "{{ 'a' if false }}|{{ 'a' if 1 else 'b' }}{{ 1 if 0 else 2 if 0 else 3 }}",
    '{{ missing is defined }} {{ messages is defined }} {{ missing is not defined }}',
    "{{ 1 is number }} {{ 'a' is string }} {{ {} is mapping }} {{ [] is sequence }} {{ 'a' is "
    'iterable }}',
    '{{ true is number }} {{ true is integer }} {{ 1 is integer }} {{ 1.0 is float }} {{ 1 is '
    'boolean }}',
    '{{ none is iterable }} {{ missing is iterable }} {{ missing is sequence }} {{ 5 is iterable '
    '}}',
    '{{ true is true }} {{ 1 is true }} {{ false is false }} {{ 3 is odd }} {{ 4 is even }}',
    '{{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 3 is eq 3 }} {{ 3 is in [1, 3] }}',
    '{{ not messages is none }} {{ missing is none }} {{ not missing }}',
    # access
    "{{ messages[0].role }}{{ messages[-1]['content'] }}{{ messages[5] }}|{{ messages[0].nothing "
    '}}|',
    '{{ messages[0].nothing.more }}',
    '{{ missing.x }}',
    "{{ missing['x'] }}",
    '{{ none.x }}|{{ 5 .x }}|',
    "{{ 'abc'[1] }}{{ 'abc'[-1] }}{{ 'abc'[9] }}|{{ 'héllo'[1:3] }}{{ 'abc'[::-1] }}",
    '{{ [1,2,3,4][1:] }}{{ [1,2,3,4][:-1] }}{{ [1,2,3,4][::2] }}{{ [1,2,3,4][-2:] }}{{ '
    '[1,2,3][::-1] }}',
    '{{ [1,2,3,4][10:] }}{{ [1,2,3,4][-10:2] }}{{ [1,2,3,4][3:1:-1] }}{{ [1,2][0:0] }}{{ '
    '[1,2][::0] }}',
    "{{ messages[0].get('role') }}{{ messages[0].get('x') }}{{ messages[0].get('x', 'd') }}",
    '{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}{{ messages[0].keys() | '
    'list }}',
    # methods
    "{{ ' a b '.strip() }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}|{{ 'xxaxx'.strip('x') }}",
    "{{ 'a,b,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ "
    "'abc'.split('x') }}",
    "{{ ' a b  c '.split(none, 1) }} {{ ''.split() }} {{ ''.split(',') }}",
    "{{ 'a'.split('') }}",
    "{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('bc') }} {{ 'aXbX'.replace('X', '-') }}",
    "{{ 'aXbX'.replace('X', '-', 1) }} {{ 'Abc'.upper() }} {{ 'ABC'.lower() }} {{ 'hello "
    "wORLD'.title() }}",
    "{{ 'hELLO'.capitalize() }} {{ 'été'.upper() }} {{ 'banana'.count('an') }} {{ 'éx'.find('x') "
    '}}',
    # filters
    "{{ ' a ' | trim }}|{{ 'xax' | trim('x') }}|{{ 'aB' | upper }}{{ 'aB' | lower }}{{ 'aB c' | "
    'title }}',
    "{{ [1,2] | length }}{{ 'hé' | length }}{{ {} | length }}{{ missing | length }}{{ none | "
    'length }}',
    "{{ missing | default('d') }}{{ none | default('d') }}{{ '' | default('d', true) }}{{ 0 | "
    'd(5) }}',
    "{{ [1, 'a', none] | join(', ') }}|{{ ['a', 'b'] | join }}|{{ messages | join(',', "
    "attribute='role') }}",
    "{{ [1,2,3] | first }}{{ [1,2,3] | last }}{{ [] | first }}|{{ 'abc' | list }}{{ 'abc' | "
    'reverse }}',
    "{{ [1,2] | reverse | list }} {{ 5 | string + 'x' }} {{ '12' | int + 1 }} {{ 'x' | int }} {{ "
    '3.9 | int }}',
    "{{ 'a-b' | replace('-', '+') }} {{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}",
    "{{ messages | map(attribute='role') | list }} {{ ['a'] | map('upper') | list }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | "
    "rejectattr('role', 'eq', 'user') | list }}{{ messages | selectattr('x') | list }}",
    "{{ [0, 1, 2] | select | list }} {{ [0, 1, 2] | select('odd') | list }} {{ [0, 1] | reject | "
    'list }}',
    "{{ {'a': 1} | items | first | first }} {{ missing | items | list }}",
    "{{ -3 | string }} {{ 'a' | safe }}",
    '{{ {\'b\': [1, 2.0, \'x"\\né</a>\'], \'a\': {}} | tojson }}',
    "{{ {'b': [1, {}], 'a': []} | tojson(indent=2) }}",
    "{{ [] | tojson }} {{ none | tojson }} {{ true | tojson }} {{ '' | tojson }} {{ missing | "
    'tojson }}',
    '{{ 1 | nothing }}',
    '{{ 1 is nothing }}',
    '{{ nothing() }}',
    # statements
    '{% for x in [1,2,3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ '
    'loop.last }};{% endfor %}',
    '{% for x in [] %}a{% else %}b{% endfor %}{% for x in missing %}a{% else %}b{% endfor %}',
    '{% for x in [1,2,3,4] if x is even %}{{ x }}{{ loop.length }}{% endfor %}',
    '{% for x in [1,2,3,4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% '
    'endif %}{{ x }}{% endfor %}',
    '{% for a, b in [[1, 2], [3, 4]] %}{{ a }}-{{ b }} {% endfor %}',
    '{% for a, b in [[1]] %}{% endfor %}',
    "{% for c in 'ab' %}{{ c }}.{% endfor %}{% for k in {'x': 1} %}{{ k }}{% endfor %}{% for x in "
    '5 %}{% endfor %}',
    '{% for x in [1,2,3] %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}',
    '{% set x = 1 %}{% for i in [1,2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}',
    "{% set ns = namespace(x=1, y='a') %}{% for i in [1,2] %}{% set ns.x = ns.x + i %}{% endfor "
    '%}{{ ns.x }}{{ ns.y }}{{ ns.z }}',
    '{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}',
    '{% set a, b = [1, 2] %}{{ a }}{{ b }}',
    '{% set x %}a{{ 1 }}{% set y = 2 %}{% endset %}{{ x }}{{ y }}',
    '{% set ns.x = 1 %}',
    "{% macro m(a, b='d') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3) "
    '}}{{ m() }}',
    '{% set c = 9 %}{% macro m() %}{{ c }}{% endmacro %}{{ m() }}{% for c in [1] %}{{ m() }}{% '
    'endfor %}',
    '{% macro m(n) %}{% if n %}{{ n }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(3) }}',
    '{{ range(3) | list }}{{ range(1, 4) | list }}{{ range(5, 0, -2) | list }}{{ dict(a=1) }}',
    "{{ raise_exception('no') }}",
    '{% if %}',
    '{% for %}',
    '{{ }}',
    '{{ 1 + }}',
    '{% endif %}',
    '{% if 1 %}',
    '{% if 1 %}{% else %}{% elif 2 %}{% endif %}',
    '{{ 1',
    '{% set = 1 %}',
    "{{ 'a }}",
    '{# x',
    '{{ a b }}',
    '{{ messages.append(1) }}',
    '{{ (1, 2)[0] }}{{ [1, 2][true] }}',
    "{{ {'a': 1}.a }}{{ {'a': {'b': 2}}.a.b }}",
    "{{ 'x' if messages | length > 1 else 'y' }}",
    '{{ messages | length - 1 }}',
    '{{ not messages | length == 1 }}',
    "{{ 'a' ~ 'b' | upper }}",
    "{{ ('a' ~ 'b') | upper }}",
    '{{ 1 is defined and 2 is defined }}',
    "{{ [3] == [3.0] }}{{ 'a' != 'b' }}{{ 2 >= 2 }}",
]
# What Jinja can and docs/chat_template.md leaves out.
REFUSED = [
    '{{ 1e3 }}',
    '{{ 100000000000000000000 }}',
    "{{ '%s' % 1 }}",
    '{{ [1] < [2] }}',
    '{{ 2 ** 3 }}',
    '{{ messages[0].items }}',
    '{{ {1: 2} }}',
    "{{ 'a'.join(['b', 'c']) }}",
    '{{ [2, 1] | sort }}',
    '{{ 1 is sameas 1 }}',
    '{% set a, b = 1, 2 %}',
    '{% raw %}x{% endraw %}',
    '{% with %}{% endwith %}',
    '{% for x in [1] recursive %}{% endfor %}',
    '{% filter upper %}x{% endfilter %}',
    "{{ '\\N{DIGIT ONE}' }}",
    '{% set x | upper %}a{% endset %}',
    '{{ cycler(1) }}',
    '{{ [1] | tojson(sort_keys=true) }}',
    '{{ dict(*[]) }}',
    '{% do 1 %}',
    '{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}{% endcall %}',
]
