import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import { type Inference, openInference, type SampleRequest } from '../../backends/inference/index.ts';
import type { ServedPolicy } from '../../core/rl/run-state.ts';
import { OpenAiInference } from '../../backends/inference/openai/openai.ts';
import { ServerPool } from '../../backends/inference/pool.ts';
import { RatchetError } from '../../core/errors.ts';
import { InferenceSpec } from '../../config/run-spec.ts';
import { complete, type FakeAnswer, type FakeModelServer, fakeModelServer } from './fake-model-server.ts';

export const policyOf = (name: string): ServedPolicy => ({
  name,
  folder: `/weights/${name}`,
  version: {
    step: 1,
    digest: '',
    weights: '',
    file: { key: '', sha256: '', bytes: 0 },
    sums: { key: '', sha256: '', bytes: 0 },
  },
});
export const v1 = policyOf('v1');
export const ask = (group: number, index = 0, more: Partial<SampleRequest> = {}): SampleRequest => ({
  policy: v1,
  promptTokenIds: [group, index],
  maxTokens: 4,
  temperature: 1,
  seed: 7,
  session: `run/main/${group}/${index}`,
  group: `run/main/${group}`,
  ...more,
});

export type Settings = Partial<Omit<Extract<InferenceSpec, { kind: 'openai' }>, 'kind'>>;

export function open(t: TestContext, servers: readonly FakeModelServer[] | string, more: Settings = {}): Inference {
  const url = typeof servers === 'string' ? servers : servers.map((server) => server.url);
  const spec = InferenceSpec.parse({ kind: 'openai', url, ...more });
  const inference = openInference(spec, '');
  t.after(() => inference.close?.());
  return inference;
}

/** Opens a pool with little patience. */
export function openImpatient(t: TestContext, servers: readonly FakeModelServer[], patienceMs: number): Inference {
  const addresses = servers.map(({ url }) => ({ url, apiKeyVar: null, headers: {}, headersFromEnv: {}, model: null }));
  const pool = new ServerPool(addresses, { maxConcurrent: 64, timeoutMs: 5_000, provider: 'cpu', patienceMs });
  t.after(() => pool.close());
  return new OpenAiInference(pool);
}

export async function servers(t: TestContext, count: number): Promise<FakeModelServer[]> {
  const all = await Promise.all(Array.from({ length: count }, () => fakeModelServer(t)));
  for (const { held } of all) held.add('v1');
  return all;
}

export const coded =
  (code: RatchetError['code'], ...words: string[]) =>
  (error: unknown) => {
    assert(error instanceof RatchetError, String(error));
    assert.equal(error.code, code, error.message);
    for (const word of words) assert(error.message.includes(word), `"${error.message}" does not say ${word}`);
    return true;
  };
export const groupsAt = ({ calls }: FakeModelServer) => [...new Set(calls.map(({ body }) => body.prompt![0]!))];
export const slowly =
  (ms: number): FakeAnswer =>
  (call, response) =>
    void setTimeout(() => complete(call, response), ms);
