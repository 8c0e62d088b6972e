"""A small parser of all dialects, slow and plain, against which the conformance set is checked."""

import ast
import json
import re

MARKERS = {"<think>": "</think>", "[THINK]": "[/THINK]", "<|channel|>analysis<|message|>": "<|end|>"}
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
REFUSED = {"refused": True}
HEADER = re.compile(
    r"(?:<\|start\|>assistant to=(?P<before>[\w.]+)<\|channel\|>\w+|(?:<\|channel\|>\w+ )?to=(?P<after>[\w.]+))"
    r"\s*(?:<\|constrain\|>)?\w*<\|message\|>"
)
PARAMETER = re.compile(r"\s*<parameter=([^>]*)>(.*?)</parameter>", re.DOTALL)


class Oracle:
    """Reads the first complete action: `call` finds a dialect's call, as (start, queries or None if it is wrong)."""

    strict = False
    pairs = staticmethod(dict)

    def parse(self, dialect, text):
        text = self.visible(text)
        answer, call = ANSWER.search(text), self.call(dialect, text)
        if call and not (answer and answer.start() < call[0]):
            return self.search(call[1])
        if answer is None or re.search(
            r"</?(answer|%s)>" % ("search" if dialect == "tags" else "tool_call"), answer[1]
        ):
            return REFUSED
        return {"answer": answer[1].strip()}

    def search(self, queries):
        queries = [queries] if isinstance(queries, str) else queries
        if not isinstance(queries, list) or not queries or not all(isinstance(q, str) and q.strip() for q in queries):
            return REFUSED
        return REFUSED if any(re.search("</?answer>", q) for q in queries) else {"search": [q.strip() for q in queries]}

    def visible(self, text):
        closings = [text.find(close) for close in ("</think>", "[/THINK]") if close in text]
        openings = [text.find(marker) for marker in MARKERS if marker in text]
        if closings and min(closings) < min(openings, default=len(text)):
            text = text[text.index(">" if text[min(closings)] == "<" else "]", min(closings)) + 1 :]
        shown = ""
        while found := min(((text.find(marker), marker) for marker in MARKERS if marker in text), default=None):
            start, marker = found
            shown += text[:start]
            end = text.find(MARKERS[marker], start + len(marker))
            text = text[end + len(MARKERS[marker]) :] if end >= 0 else ""
        return shown + text

    def call(self, dialect, text):
        return getattr(self, f"call_of_{dialect}")(text)

    def call_of_tags(self, text):
        found = re.search(r"<search>(.*?)</search>", text, re.DOTALL)
        return found and (found.start(), None if "<search>" in found[1] else found[1])

    def call_of_hermes(self, text):
        start = text.find("<tool_call>")
        return (start, self.read(self.json(text[start + 11 :]))) if start >= 0 else None

    def call_of_qwen3_coder(self, text):
        found = re.search(r"(?:<tool_call>\s*)?<function=([^>]*)>", text)
        if not found:
            return None
        end, values = found.end(), {}
        while parameter := PARAMETER.match(text, end):
            values[parameter[1]], end = parameter[2].strip(), parameter.end()
        query = values.get("query") if found[1] == "search" else None
        if query and query.startswith('["'):
            query = self.json(query)
        return found.start(), query if re.compile(r"\s*</function>").match(text, end) else None

    def call_of_llama3(self, text):
        start = text.find("<|python_tag|>")
        bare = re.match(r"\s*(```(json)?\s*)?[\[{]", text)
        if start >= 0 and not bare:
            return start, self.read(self.json(text[start + 14 :]))
        return (0, self.read(self.json(text))) if bare else None

    def call_of_mistral(self, text):
        start = text.find("[TOOL_CALLS]")
        if start < 0:
            return None
        named = re.compile(r"\s*(\w*)\s*(?:\[CALL_ID\]\w+)?\s*\[ARGS\]").match(text, start + 12)
        if named:
            return start, self.query(self.json(text[named.end() :])) if named[1] == "search" else None
        return start, self.read(self.json(text[start + 12 :]))

    def call_of_gemma(self, text):
        start = text.find("```tool_code\n")
        if start < 0:
            return self.call_of_llama3(text.replace("<|python_tag|>", "no tag"))
        for end in [found.end() for found in re.finditer(r"\)", text)]:
            try:
                call = ast.parse(text[start + 13 : end].strip(), mode="eval").body
                assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "search"
                values = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
            except (SyntaxError, ValueError, AssertionError, MemoryError, RecursionError):
                continue
            return start, values.get("query")
        return start, None

    def call_of_gpt_oss(self, text):
        found = HEADER.search(text)
        if not found:
            return None
        name = found["before"] or found["after"]
        return found.start(), self.query(self.json(text[found.end() :])) if name == "functions.search" else None

    def json(self, text):
        """Returns the first JSON value of a text, without a fence; None if there is none."""
        text = re.sub(r"^\s*(```(json)?)?\s*", "", text)
        try:
            return json.JSONDecoder(strict=self.strict, object_pairs_hook=self.pairs).raw_decode(text)[0]
        except (ValueError, RecursionError):
            return None

    def read(self, call):
        """Returns the queries of a call as JSON."""
        call = call[0] if isinstance(call, list) and call else call
        if isinstance(call, dict) and isinstance(call.get("function"), dict):
            call = call["function"]
        if not isinstance(call, dict) or call.get("name") != "search":
            return None
        values = call.get("arguments", call.get("parameters"))
        return self.query(self.json(values) if isinstance(values, str) else values)

    def query(self, values):
        return values.get("query") if isinstance(values, dict) else None
