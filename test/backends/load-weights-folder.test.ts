import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';
import { loadWeightsFolder, startedWith } from '../../backends/inference/load-weights-folder.ts';
import { ModelServer } from '../../backends/inference/model-server.ts';
import { startPolicyServer } from '../../engine/index.ts';
import { startVllmStandIn, type StandInOptions } from '../stand-ins/vllm/server.ts';
import { makeVersions, type Versions } from './vllm-versions.ts';

/** Folders of weights at a server that runs already, as `ratchet eval --weights-dir` has them loaded. */

function open(t: TestContext, url: string): ModelServer {
  const address = { url, apiKeyVar: null, headers: {}, headersFromEnv: {}, model: null };
  const server = new ModelServer(address, { timeoutMs: 60_000, provider: 'cpu' });
  t.after(() => server.close());
  return server;
}

async function standIn(t: TestContext, { folder }: Versions, more: Partial<StandInOptions>): Promise<ModelServer> {
  const started = await startVllmStandIn({ model: `${folder}/step_0`, servedName: 'Qwen/base', ...more });
  t.after(() => started.close());
  return open(t, started.url);
}

/** Log probabilities of a prompt's most likely continuation: of other weights they are others. */
async function said(server: ModelServer, model: string): Promise<string> {
  const body = { model, prompt: [3, 10, 11, 2], max_tokens: 4, temperature: 0.001, logprobs: 0, seed: 1 };
  const { choices } = (await server.post('/v1/completions', body)) as {
    choices: { logprobs: { token_logprobs: number[] } }[];
  };
  return choices[0]!.logprobs.token_logprobs.map((one) => one.toFixed(4)).join(' ');
}

/** Answer of our own server for the same folder. */
async function expected(t: TestContext, { folder }: Versions, weights: string): Promise<string> {
  const inner = await startPolicyServer({ key: null, threads: 1, allowRoots: [folder] });
  const server = open(t, inner.url);
  const { model } = await loadWeightsFolder(server, weights, 'ours-step_1');
  assert.equal(model, 'ours-step_1');
  const says = await said(server, model);
  await inner.close();
  return says;
}

test('a vLLM as it is (VLLM_SERVER_DEV_MODE=1) is given whole weights, and asked by the name that it was started with', async (t) => {
  const versions = await makeVersions(t);
  const server = await standIn(t, versions, { isDevelopment: true });
  assert.equal(await startedWith(server), 'Qwen/base');
  const before = await said(server, 'Qwen/base');
  for (const step of [1, 2]) {
    const { folder } = await versions.whole(step);
    const { model } = await loadWeightsFolder(server, folder, `weights-step_${step}`);
    assert.equal(model, 'Qwen/base');
    assert.equal(await said(server, model), await expected(t, versions, folder));
  }
  assert.notEqual(await said(server, 'Qwen/base'), before);
});

test('a vLLM that takes adapters is given them under a name, and relieved of them', async (t) => {
  const versions = await makeVersions(t);
  const server = await standIn(t, versions, { takesAdapters: true });
  const { folder } = await versions.adapter(1);
  const { model, unload } = await loadWeightsFolder(server, folder, 'weights-step_1');
  assert.equal(model, 'weights-step_1');
  const base = await said(server, 'Qwen/base');
  assert.notEqual(await said(server, model), base);
  await unload();
  await assert.rejects(said(server, model));
  assert.equal(await said(server, 'Qwen/base'), base);
});

test("prime-rl's server is given weights by its own route, and asked by the name that it was started with", async (t) => {
  const versions = await makeVersions(t);
  const server = await standIn(t, versions, { isPrimeRl: true });
  const { folder } = await versions.whole(1);
  const { model } = await loadWeightsFolder(server, folder, 'weights-step_1');
  assert.equal(model, 'Qwen/base');
  assert.equal(await said(server, model), await expected(t, versions, folder));
});

test('a vLLM that was started without either is refused, with how to start it and what else to type', async (t) => {
  const versions = await makeVersions(t);
  const server = await standIn(t, versions, {});
  const [whole, adapter] = [await versions.whole(1), await versions.adapter(1)];
  await assert.rejects(loadWeightsFolder(server, whole.folder, 'x'), {
    code: 'Unsupported',
    message: /VLLM_SERVER_DEV_MODE=1; or serve this folder by itself \(vllm serve .*run_whole_1\)/,
  });
  await assert.rejects(loadWeightsFolder(server, adapter.folder, 'x'), {
    code: 'Unsupported',
    message: /VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora/,
  });
});
