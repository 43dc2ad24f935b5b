"""One process of llama-cpp-python: `engine.py MODEL STORE [OPTIONS]` answers the prompts that stdin
has, one JSON list of tokens a line, and says for each {"text": ..., "evaluated": tokens of its first
evaluation}. STORE: a directory, "unix:PATH", or "none". OPTIONS: JSON, arguments of Llama."""

import json
import sys

import llama_cpp


def main(model, store, options="{}"):
    llm = llama_cpp.Llama(model, n_ctx=4096, n_threads=1, verbose=False, seed=1,
                          **json.loads(options))
    evaluated = []
    evaluate = llm.eval

    def counted(tokens):
        evaluated.append(len(tokens))
        evaluate(tokens)

    llm.eval = counted
    if store != "none":
        from quire.llama_cpp import QuireCache
        llm.set_cache(QuireCache(llm, store, cap_bytes=64 << 20))
    print("READY", flush=True)
    for line in sys.stdin:
        evaluated.clear()
        answer = llm.create_completion(json.loads(line), max_tokens=24, temperature=0.0,
                                       repeat_penalty=1.0, seed=1)
        print(json.dumps({"text": answer["choices"][0]["text"], "evaluated": evaluated[0]}),
              flush=True)
    if store != "none":
        llm.cache.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
