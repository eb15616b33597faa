import assert from 'node:assert/strict';
import { request } from 'node:http';
import { createHash } from 'node:crypto';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { startWeightsAgent } from '../../backends/inference/index.ts';
import type { ServedPolicy } from '../../core/rl/run-state.ts';
import { openRunStore } from '../../store/index.ts';
import { putSums } from '../../store/version-files.ts';
import { holdSecret } from '../../host/project-secret.ts';
import { startVllmStandIn } from '../stand-ins/vllm/server.ts';
import { coded } from './pooled-servers.ts';
import { makeVersions, openVllm } from './vllm-versions.ts';

/** The project's, which the worker has as well. */
const own = { kind: 'secret', value: 'secret-of-this-project' } as const;
const chosen = { kind: 'chosen', value: 'a key', variable: 'RATCHET_WEIGHTS_AGENT_KEY' } as const;
holdSecret('', { RATCHET_SECRET: own.value });

/** A run's store with v0 and an adapter in it, and what a worker knows of the adapter: nothing that this machine could read. */
async function storedRun(t: TestContext): Promise<{ storeUri: string; policy: ServedPolicy; file: string }> {
  const versions = await makeVersions(t);
  const outputs = await mkdtemp(path.join(os.tmpdir(), 'ratchet-agent-'));
  t.after(() => rm(outputs, { recursive: true, force: true }));
  const storeUri = `${pathToFileURL(outputs).href}/`;
  const store = openRunStore(storeUri, 'run');
  const base = [];
  for (const name of ['config.json', 'tokenizer.json', 'tokenizer_config.json', 'model.safetensors']) {
    base.push(await store.putFile(`weights/step_0/${name}`, path.join(versions.v0.folder, name)));
  }
  await putSums(store, 'weights/step_0/', base);
  const adapter = await versions.adapter(1);
  const config = await store.putFile(
    'weights/step_1/adapter_config.json',
    path.join(adapter.folder, 'adapter_config.json'),
  );
  const file = await store.putFile(
    'weights/step_1/adapter_model.safetensors',
    path.join(adapter.folder, 'adapter_model.safetensors'),
  );
  const sums = await putSums(store, 'weights/step_1/', [config, file]);
  const policy = { ...adapter, version: { ...adapter.version, weights: 'weights/step_1/', file, sums } };
  return { storeUri, policy, file: path.join(outputs, 'run', file.key) };
}

test('an agent beside the server fetches a version, verifies it, and vLLM loads it from there', async (t) => {
  const { storeUri, policy, file } = await storedRun(t);
  const agent = await startWeightsAgent({ storeUri, port: 0, key: own, log: () => undefined });
  t.after(() => agent.close());
  const model = path.join(path.dirname(file), '../step_0');
  const server = await startVllmStandIn({ model, servedName: 'base', takesAdapters: true });
  t.after(() => server.close());
  const vllm = openVllm(t, [server.url], { weightsAgent: agent.url });
  await vllm.bringTo(policy);
  const prompt = { promptTokenIds: [3, 10, 2], maxTokens: 3, temperature: 1, seed: 1 };
  assert((await vllm.sample({ ...prompt, policy })).tokenIds.length > 0);

  const bytes = await readFile(file);
  bytes[bytes.length - 1]! ^= 1;
  await writeFile(file, bytes);
  const other = openVllm(t, [server.url], { weightsAgent: agent.url });
  const renamed = { ...policy, name: 'run:main:2' };
  await assert.rejects(
    other.bringTo(renamed),
    coded('InferenceUnavailable', createHash('sha256').update(bytes).digest('hex').slice(0, 12)),
  );
});

test('an agent gives nothing that is outside of a version, and nothing without its key', async (t) => {
  const { storeUri, policy } = await storedRun(t);
  const open = await startWeightsAgent({ storeUri, port: 0, key: own, log: () => undefined });
  const closed = await startWeightsAgent({ storeUri, port: 0, key: chosen, log: () => undefined });
  t.after(() => Promise.all([open.close(), closed.close()]));
  const { weights, file, sums } = policy.version;
  const good = { run: 'run', weights, file, sums };
  const ask = async (
    url: string,
    body: unknown,
    headers: Record<string, string> = { authorization: `Bearer ${own.value}` },
  ): Promise<number> => (await fetch(`${url}/locate`, { method: 'POST', body: JSON.stringify(body), headers })).status;
  assert.equal(await ask(open.url, good), 200);
  for (const bad of [
    { ...good, run: '../other' },
    { ...good, weights: 'weights/../../' },
    { ...good, file: { ...file, key: 'weights/step_1/../../secret' } },
    { ...good, file: { ...file, key: 'run.json' } },
    { ...good, sums: { ...sums, key: 'run.json' } },
    'nothing',
  ]) {
    assert.equal(await ask(open.url, bad), 400, JSON.stringify(bad));
  }
  assert.equal(await ask(open.url, good, {}), 401, 'another user of the machine');
  const authorization = `Bearer ${own.value}`;
  assert.equal(await ask(open.url, good, { authorization, origin: 'https://example.com' }), 403, 'a web page');
  const rebound = await new Promise<number | undefined>((resolve, reject) =>
    request(`${open.url}/locate`, { method: 'POST', headers: { authorization, host: 'rebound.example' } }, (answer) =>
      resolve(answer.resume().statusCode),
    )
      .on('error', reject)
      .end(JSON.stringify(good)),
  );
  assert.equal(rebound, 403, 'a name that leads here');
  assert.equal(await ask(closed.url, good), 401);
  assert.equal(await ask(closed.url, good, { authorization: 'Bearer a key' }), 200);
  await assert.rejects(
    startWeightsAgent({ storeUri, host: '0.0.0.0', port: 0, key: own, log: () => undefined }),
    coded('ConfigInvalid', 'RATCHET_WEIGHTS_AGENT_KEY'),
  );
});
