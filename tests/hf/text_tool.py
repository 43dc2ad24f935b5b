"""Asks bin/text_tool: one JSON request a line, one JSON answer a line."""

import json
import subprocess


class TextTool:
    def __init__(self, program, *arguments):
        self.process = subprocess.Popen([program, *map(str, arguments)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)

    def __call__(self, **request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"text_tool ended with {self.process.wait()}")
        return json.loads(answer)

    def close(self):
        self.process.stdin.close()
        return self.process.wait()
