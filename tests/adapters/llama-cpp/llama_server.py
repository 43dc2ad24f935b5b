"""llama.cpp's server as a program, from the package xllamacpp, which has it as a class: the options of
llama-server that the tests use."""

import argparse
import signal

import xllamacpp


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", required=True)
    parser.add_argument("-c", type=int, default=4096)
    parser.add_argument("-np", type=int, default=1)
    parser.add_argument("-t", type=int, default=1)
    parser.add_argument("--rope-freq-base", type=float, default=0)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slot-save-path", required=True)
    asked = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = asked.m, asked.c, asked.np
    params.cpuparams.n_threads = asked.t
    params.rope_freq_base = asked.rope_freq_base
    params.hostnames, params.port = [asked.host], asked.port
    params.slot_save_path = asked.slot_save_path
    params.endpoint_slots = params.endpoint_props = params.no_extra_bufts = True
    params.warmup = False
    params.cache_ram_mib = 0  # of prompts that left their slots: hits come from the store alone
    server = xllamacpp.Server(params)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    del server


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
