import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';
import {
  decodePassOutput,
  decodeSampleResponse,
  encodePassRequest,
  type TensorInput,
  type TinkerLoss,
} from '../../backends/tinker/index.ts';

/** Made by the Python package; test/data/tinker/make-golden.py says how. */
const golden = JSON.parse(await readFile(new URL('../data/tinker/golden.json', import.meta.url), 'utf8')) as {
  requests: {
    name: string;
    body: string;
    request: {
      model_id: string;
      seq_id: number;
      loss_fn: TinkerLoss;
      loss_fn_config: Record<string, number> | null;
      forward_only: boolean;
      data: { tokens: number[]; inputs: Record<string, TensorInput> }[];
    };
  }[];
  outputs: { name: string; body: string; metrics: Record<string, number>; logprobs: number[][] }[];
  samples: {
    name: string;
    body: string;
    sequences: { stop_reason: string; tokens: number[]; logprobs: number[] }[];
    prompt_logprobs: (number | null)[];
  }[];
};

for (const { name, request, body } of golden.requests) {
  test(`forward_backward, ${name}: the bytes are those of the Python package`, () => {
    const encoded = encodePassRequest({
      modelId: request.model_id,
      seqId: request.seq_id,
      data: request.data,
      loss: { lossFn: request.loss_fn, config: request.loss_fn_config },
      forwardOnly: request.forward_only,
    });
    assert.equal(Buffer.from(encoded).toString('base64'), body);
  });
}

for (const { name, body, metrics, logprobs } of golden.outputs) {
  test(`the output of forward_backward, ${name}, is read as the Python package reads it`, () => {
    assert.deepEqual(decodePassOutput(Buffer.from(body, 'base64')), { logprobs, metrics });
  });
}

for (const { name, body, sequences, prompt_logprobs: promptLogprobs } of golden.samples) {
  test(`a sample, ${name}, is read as the Python package reads it`, () => {
    assert.deepEqual(decodeSampleResponse(Buffer.from(body, 'base64')), {
      sequences: sequences.map(({ stop_reason: stopReason, ...rest }) => ({ stopReason, ...rest })),
      promptLogprobs,
    });
  });
}
