"""A file of requests, sent by night and resumed after whatever stopped it.

    OPENAI_API_KEY=... python examples/nightly_file.py https://api.openai.com answers.jsonl

Run it again with the same files, and only what has no answer yet is sent.
"""

import json
import subprocess
import sys
from pathlib import Path

api, answers = sys.argv[1], Path(sys.argv[2])
jobs = answers.with_name("requests.jsonl")

with jobs.open("w", encoding="utf-8") as file:
    for number in range(20):
        body = {
            "model": "gpt-5-mini",
            "messages": [{"role": "user", "content": f"Summarise document {number}"}],
            "max_completion_tokens": 50,
        }
        job = {
            "custom_id": f"document {number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": body,
        }
        file.write(json.dumps(job) + "\n")

# The same as in a shell: headgate run requests.jsonl --to https://api.openai.com -o answers.jsonl
command = [sys.executable, "-m", "headgate", "run", jobs, "--to", api, "-o", answers, "--rate", "600/minute"]
status = subprocess.run(command, check=False).returncode

lines = answers.read_text(encoding="utf-8").splitlines()
print(f"{len(lines)} answers, exit status {status}")
sys.exit(status)
