import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { openInference } from '../../backends/inference/index.ts';
import type { ServedPolicy } from '../../core/rl/run-state.ts';
import { InferenceSpec } from '../../config/run-spec.ts';
import { startPolicyServer } from '../../engine/index.ts';
import { startVllmStandIn, type StandInOptions, type VllmStandIn } from '../stand-ins/vllm/server.ts';
import { complete, fakeModelServer, reply } from './fake-model-server.ts';
import { coded } from './pooled-servers.ts';
import {
  canaryPositions as positions,
  canaryTokens as tokenIds,
  makeVersions,
  openVllm,
  type Versions,
} from './vllm-versions.ts';

const prompt = { promptTokenIds: [3, 10, 11, 2], maxTokens: 4, temperature: 0.7, seed: 5 };
const agrees = 1e-5;

async function standIn(t: TestContext, { folder }: Versions, more: Partial<StandInOptions> = {}): Promise<VllmStandIn> {
  const server = await startVllmStandIn({
    model: `${folder}/step_0`,
    servedName: 'base',
    takesAdapters: true,
    isDevelopment: true,
    ...more,
  });
  t.after(() => server.close());
  return server;
}

/** Log probabilities of the canary at our own policy server. */
async function expectedOf(t: TestContext, { folder }: Versions, policy: ServedPolicy): Promise<readonly number[]> {
  const server = await startPolicyServer({ key: null, threads: 1, allowRoots: [folder] });
  const ours = openInference(InferenceSpec.parse({ kind: 'embedded', url: server.url }), '');
  await ours.bringTo(policy);
  const logprobs = await ours.score!({ policy, tokenIds, positions });
  ours.close?.();
  await server.close();
  assert(logprobs);
  return logprobs;
}

async function modelsAt({ url }: VllmStandIn): Promise<string[]> {
  const { data } = (await (await fetch(`${url}/v1/models`)).json()) as { data: { id: string }[] };
  return data.map(({ id }) => id);
}

const count = ({ asked }: VllmStandIn, route: string): number => asked.filter((one) => one === route).length;

test('versions of adapters are loaded under names with their digest, and agree with the trainer', async (t) => {
  const versions = await makeVersions(t);
  const server = await standIn(t, versions);
  const vllm = openVllm(t, [server.url]);
  for (const policy of [versions.v0, await versions.adapter(1), await versions.adapter(2)]) {
    await vllm.bringTo(policy);
    const expected = await expectedOf(t, versions, policy);
    const [drift] = await vllm.compare!({ policy, tokenIds, positions, expected, threshold: 1e-3 });
    assert(drift!.difference < agrees, `${policy.name}: ${drift!.difference}`);
  }
  const [base, ...adapters] = await modelsAt(server);
  assert.equal(base, 'base');
  assert.deepEqual(
    adapters.map((name) => name.replace(/@[0-9a-f]{12}$/, '')),
    ['run:main:1', 'run:main:2'],
  );
});

test('a run that begins anew under its name is not served the adapter of the one before', async (t) => {
  const versions = await makeVersions(t);
  const server = await standIn(t, versions);
  const vllm = openVllm(t, [server.url]);
  const [first, other] = [await versions.adapter(1), await versions.adapter(8)];
  const again = { ...other, name: first.name, version: { ...other.version, step: 1 } };
  await vllm.bringTo(first);
  const before = await vllm.sample({ ...prompt, policy: first });
  await vllm.bringTo(again);
  const after = await vllm.sample({ ...prompt, policy: again });
  assert.notDeepEqual(after.logprobs, before.logprobs);
  assert.equal((await modelsAt(server)).length, 3);
});

test('adapters that nobody asks for are unloaded, those that an evaluation holds stay', async (t) => {
  const versions = await makeVersions(t);
  const server = await standIn(t, versions);
  const vllm = openVllm(t, [server.url]);
  const held = await versions.adapter(1);
  await vllm.bringTo(held);
  assert.equal(await vllm.hold!(held, 'eval', 60), 'held');
  for (let step = 2; step <= 7; step++) await vllm.bringTo(await versions.adapter(step));
  const names = (await modelsAt(server)).slice(1).map((name) => name.split('@', 1)[0]);
  assert.deepEqual(names, ['run:main:1', 'run:main:4', 'run:main:5', 'run:main:6', 'run:main:7']);
  await vllm.release!(held, 'eval');
  await vllm.bringTo(await versions.adapter(8));
  assert(!(await modelsAt(server)).some((name) => name.startsWith('run:main:1@')));
});

test('a server that was started again has no adapters, and is brought to the version it is asked for', async (t) => {
  const versions = await makeVersions(t);
  const first = await standIn(t, versions);
  const vllm = openVllm(t, [first.url]);
  const policy = await versions.adapter(3);
  await vllm.bringTo(policy);
  const before = await vllm.sample({ ...prompt, policy });
  await first.close();
  const second = await standIn(t, versions, { port: first.port });
  const after = await vllm.sample({ ...prompt, policy });
  assert.deepEqual(after, before);
  assert.equal(count(second, 'POST /v1/load_lora_adapter'), 1);
});

/** Adapters of a server, without digests. */
async function adaptersAt(server: VllmStandIn): Promise<string[]> {
  return (await modelsAt(server)).slice(1).map((name) => name.split('@', 1)[0]!);
}

test('two runs share a server: each has adapters of its own, which the other neither replaces nor unloads, also after a restart', async (t) => {
  const versions = await makeVersions(t);
  const first = await standIn(t, versions);
  const [a, b] = [openVllm(t, [first.url]), openVllm(t, [first.url])];
  // The same step of two runs, and a name that begins with the other one's.
  const [ofA, ofB] = [await versions.adapter(1, 'run'), await versions.adapter(2, 'run-2')];
  const sameStep = { ...ofB, name: 'run-2:main:1', version: { ...ofB.version, step: 1 } };
  await Promise.all([a.bringTo(ofA), b.bringTo(sameStep)]);
  const sampled = () => Promise.all([a.sample({ ...prompt, policy: ofA }), b.sample({ ...prompt, policy: sameStep })]);
  const before = await sampled();
  assert.notDeepEqual(before[0], before[1]);
  for (let step = 3; step <= 9; step++) await a.bringTo(await versions.adapter(step, 'run'));
  assert.deepEqual((await adaptersAt(first)).toSorted(), ['run-2:main:1', 'run:main:6', 'run:main:7', 'run:main:8', 'run:main:9']); // prettier-ignore
  assert.deepEqual((await sampled())[1], before[1]);
  assert.equal(count(first, 'POST /collective_rpc'), 0, 'nobody exchanges the base that both have');
  await first.close();
  const second = await standIn(t, versions, { port: first.port });
  assert.deepEqual(await sampled(), before);
  assert.deepEqual((await adaptersAt(second)).toSorted(), ['run-2:main:1', 'run:main:1']);
});

test('a run that has ended leaves nothing at a server, and the others keep what they have', async (t) => {
  const versions = await makeVersions(t);
  const server = await standIn(t, versions);
  const vllm = openVllm(t, [server.url]);
  for (const run of ['run', 'run-2']) {
    for (const step of [1, 2]) await vllm.bringTo(await versions.adapter(step, run));
  }
  await vllm.leave!('run');
  await vllm.leave!('run');
  assert.deepEqual(await adaptersAt(server), ['run-2:main:1', 'run-2:main:2']);
  const [late] = [await versions.adapter(2, 'run')];
  await vllm.sample({ ...prompt, policy: late }); // as an evaluation of its last version does
  assert.deepEqual(await adaptersAt(server), ['run-2:main:1', 'run-2:main:2', 'run:main:2']);
});

test('adapters of runs that were killed give way once a server has many; one that is asked for again comes back', async (t) => {
  const versions = await makeVersions(t);
  const server = await standIn(t, versions);
  const vllm = openVllm(t, [server.url]);
  const first = await versions.adapter(1, 'killed-1');
  for (let i = 1; i <= 33; i++) await vllm.bringTo(await versions.adapter(1, `killed-${i}`));
  await vllm.bringTo(await versions.adapter(1, 'run'));
  const kept = await adaptersAt(server);
  assert.equal(kept.length, 32);
  assert.deepEqual([kept[0], kept.at(-1)], ['killed-3:main:1', 'run:main:1']);
  await vllm.sample({ ...prompt, policy: first });
  assert.equal((await adaptersAt(server)).at(-1), 'killed-1:main:1');
});

test('a run whose adapters have another base waits until the others are gone: their adapters never sample over it', async (t) => {
  const versions = await makeVersions(t);
  const others = await makeVersions(t, undefined, 1);
  const server = await standIn(t, versions, { model: others.v0.folder });
  const [a, b] = [openVllm(t, [server.url], { servesBase: false }), openVllm(t, [server.url], { servesBase: false })];
  const [ofA, ofB] = [await versions.adapter(1, 'a'), await others.adapter(1, 'b')];
  await a.bringTo(ofA);
  const before = await a.sample({ ...prompt, policy: ofA });
  await assert.rejects(b.bringTo(ofB), coded('VersionNotHeld', 'has adapters of a over a:main:0', 'b needs other weights', 'a server of its own')); // prettier-ignore
  await assert.rejects(b.sample({ ...prompt, policy: ofB }), coded('VersionNotHeld', 'has adapters of a'));
  assert.deepEqual(await a.sample({ ...prompt, policy: ofA }), before);
  assert.equal(count(server, 'POST /collective_rpc'), 1);
  await a.leave!('a');
  await b.bringTo(ofB);
  const expected = await expectedOf(t, others, ofB);
  const [drift] = await b.compare!({ policy: ofB, tokenIds, positions, expected, threshold: 1e-3 });
  assert(drift!.difference < agrees, String(drift!.difference));
});

test('a run whose adapters are larger than its server was started for is told what to start it with', async (t) => {
  const versions = await makeVersions(t);
  const server = await standIn(t, versions, { maxLoraRank: 1 });
  await assert.rejects(openVllm(t, [server.url]).bringTo(await versions.adapter(1)), coded('Unsupported', 'LoRA rank 4 is greater than max_lora_rank 1', '[inference.vllm]')); // prettier-ignore
});

test('a run of full weights does not exchange those below adapters of another run', async (t) => {
  const versions = await makeVersions(t);
  const server = await standIn(t, versions);
  const [adapters, whole] = [openVllm(t, [server.url]), openVllm(t, [server.url], { loraRank: null })];
  await adapters.bringTo(await versions.adapter(1, 'a'));
  await assert.rejects(whole.bringTo(await versions.whole(1, 'b')), coded('VersionNotHeld', 'has adapters of a over the weights it was started with')); // prettier-ignore
  assert.equal(count(server, 'POST /collective_rpc'), 0);
});

test('a turn during which the base of its adapter was exchanged is not used: it is sampled again over the right one', async (t) => {
  const versions = await makeVersions(t);
  const others = await makeVersions(t, undefined, 1);
  const server = await standIn(t, versions, { model: others.v0.folder });
  const vllm = openVllm(t, [server.url], { servesBase: false });
  const policy = await versions.adapter(1);
  await vllm.bringTo(policy);
  const before = await vllm.sample({ ...prompt, policy });
  const post = (route: string, body: object) =>
    fetch(server.url + route, { method: 'POST', body: JSON.stringify(body) });
  const reload = { method: 'reload_weights', kwargs: { weights_path: others.v0.folder } };
  await post('/collective_rpc', reload);
  await post('/update_weight_version', { new_version: 'other:main:0@0123456789ab' });
  assert.deepEqual(await vllm.sample({ ...prompt, policy }), before);
  assert.equal(count(server, 'POST /collective_rpc'), 3, 'its own base, the other one, and its own again');
});

test('full weights are exchanged between two tokens, and a restarted server is noticed though it knows the name', async (t) => {
  const versions = await makeVersions(t);
  const first = await standIn(t, versions);
  const vllm = openVllm(t, [first.url], { loraRank: null });
  await vllm.bringTo(versions.v0);
  assert.equal(count(first, 'POST /collective_rpc'), 0, 'it was started with v0');
  const policy = await versions.whole(1);
  await vllm.bringTo(policy);
  await vllm.bringTo(policy);
  assert.equal(count(first, 'POST /collective_rpc'), 1);
  assert.deepEqual(
    first.asked.filter((one) => /^POST .(pause|resume|update_weight_version|collective_rpc)/.test(one)),
    ['pause', 'update_weight_version', 'collective_rpc', 'update_weight_version', 'resume'].map(
      (one) => `POST /${one}`,
    ),
    'no token is sampled while the label says something else',
  );
  const expected = await expectedOf(t, versions, policy);
  const [drift] = await vllm.compare!({ policy, tokenIds, positions, expected, threshold: 1e-3 });
  assert(drift!.difference < agrees);
  const before = await vllm.sample({ ...prompt, policy });
  assert.equal(await vllm.hold!(policy, 'eval', 60), 'single');

  await first.close();
  const second = await standIn(t, versions, { port: first.port });
  await new Promise((resolve) => setTimeout(resolve, 2_100)); // longer than an answer is taken to vouch for
  assert.deepEqual(await vllm.sample({ ...prompt, policy }), before);
  assert.equal(count(second, 'POST /collective_rpc'), 1);
});

test('a server that was left paused, with the label of what it was given, is resumed by whoever brings it there next', async (t) => {
  const versions = await makeVersions(t);
  const server = await standIn(t, versions);
  const policy = await versions.whole(1);
  await openVllm(t, [server.url], { loraRank: null }).bringTo(policy);
  await fetch(`${server.url}/pause?mode=keep`, { method: 'POST' }); // as after a kill between the label and the resume
  const next = openVllm(t, [server.url], { loraRank: null });
  await next.bringTo(policy);
  assert.equal(count(server, 'POST /collective_rpc'), 1);
  assert.equal((await next.sample({ ...prompt, policy })).tokenIds.length > 0, true);
});

test('prime-rl’s server is given full weights by its own route; one that is another process than before is given them again', async (t) => {
  const versions = await makeVersions(t);
  const more = { isDevelopment: false, isPrimeRl: true };
  const first = await standIn(t, versions, more);
  const vllm = openVllm(t, [first.url], { loraRank: null });
  const policy = await versions.whole(1);
  await vllm.bringTo(policy);
  const weights = first.asked.filter((one) => /pause|resume|POST \/update/.test(one));
  assert.deepEqual(weights, ['POST /pause', 'POST /update_weights', 'POST /resume']);
  const before = await vllm.sample({ ...prompt, policy });
  await first.close();
  const second = await standIn(t, versions, { ...more, port: first.port });
  await new Promise((resolve) => setTimeout(resolve, 2_100)); // longer than an answer is taken to vouch for
  assert.deepEqual(await vllm.sample({ ...prompt, policy }), before);
  assert.equal(count(second, 'POST /update_weights'), 1);
});

test('a turn of an older version continues with the newer weights and says so; it never turns them back', async (t) => {
  const versions = await makeVersions(t);
  const server = await standIn(t, versions);
  const [older, newer] = [await versions.whole(1), await versions.whole(2)];
  await openVllm(t, [server.url], { loraRank: null }).bringTo(newer);
  const elsewhere = openVllm(t, [server.url], { loraRank: null }); // another process, which has no broadcast
  assert.equal((await elsewhere.sample({ ...prompt, policy: older })).servedStep, 2);
  assert.equal((await elsewhere.sample({ ...prompt, policy: newer })).servedStep, undefined);
  assert.equal(count(server, 'POST /collective_rpc'), 1);
});

test('weights that another process exchanges in the middle of a turn are told, and those of the next turn as well', async (t) => {
  const versions = await makeVersions(t);
  const [older, newer] = [await versions.whole(1), await versions.whole(2)];
  const server = await fakeModelServer(t);
  const labelOf = ({ name, version }: ServedPolicy): string => `${name}@${version.digest.slice(0, 12)}`;
  let label = labelOf(older);
  let isExchanged = false;
  server.answers = {
    '/v1/models': (_, response) => reply(response, 200, { data: [{ id: 'base' }] }),
    '/weight_info': (_, response) => reply(response, 200, { weight_version: label }),
    '/v1/completions': (call, response) => {
      if (isExchanged) label = labelOf(newer);
      complete(call, response);
    },
  };
  const vllm = openVllm(t, [server.url], { loraRank: null });
  const stepsOf = async (policy: ServedPolicy) => {
    const { servedStep, servedThrough } = await vllm.sample({ ...prompt, policy });
    return [servedStep, servedThrough];
  };
  assert.deepEqual(await stepsOf(older), [undefined, undefined]);
  isExchanged = true;
  assert.deepEqual(await stepsOf(older), [undefined, 2], 'it began as asked');
  assert.deepEqual(
    await stepsOf(older),
    [2, undefined],
    'though the server was never silent, so nobody looked before it',
  );
  assert.deepEqual(await stepsOf(newer), [undefined, undefined]);

  label = 'unknown'; // an exchange is under way: nothing is known of it, so nothing is said
  isExchanged = false;
  assert.deepEqual(await stepsOf(newer), [undefined, undefined]);
  server.answers['/weight_info'] = (_, response) => response.destroy();
  assert.deepEqual(await stepsOf(newer), [undefined, undefined], 'a turn is whole though its server has gone since');
});

test('a server without a name for its weights is not asked for it after each turn, nor is one of adapters', async (t) => {
  const versions = await makeVersions(t);
  const labels = (server: VllmStandIn): number => count(server, 'GET /weight_info');
  const wrapper = await standIn(t, versions, { isDevelopment: false, isPrimeRl: true });
  const whole = openVllm(t, [wrapper.url], { loraRank: null });
  const policy = await versions.whole(1);
  await whole.bringTo(policy);
  const before = labels(wrapper);
  for (let i = 0; i < 3; i++) await whole.sample({ ...prompt, policy });
  assert.equal(labels(wrapper), before);

  const adapters = await standIn(t, versions);
  const adapted = openVllm(t, [adapters.url]);
  const adapter = await versions.adapter(1);
  await adapted.bringTo(adapter);
  await adapted.sample({ ...prompt, policy: adapter });
  assert.equal(labels(adapters), 0);
});

test('servers say what they compute in: the least exact one counts, and one that does not tell leaves it open', async (t) => {
  const versions = await makeVersions(t);
  const exact = await standIn(t, versions);
  const half = await standIn(t, versions, { dtype: 'bfloat16' });
  const silent = await standIn(t, versions, { isDevelopment: false });
  const typeOf = (...servers: VllmStandIn[]) =>
    openVllm(
      t,
      servers.map(({ url }) => url),
    ).floatType!();
  assert.equal(await typeOf(exact), 'float32');
  assert.equal(await typeOf(exact, half), 'bfloat16');
  assert.equal(await typeOf(silent, half), 'bfloat16');
  assert.equal(await typeOf(exact, silent), null);
  await silent.close();
  assert.equal(await typeOf(silent), null);

  const once = openVllm(t, [exact.url]);
  const asked = count(exact, 'GET /server_info');
  for (let i = 0; i < 3; i++) await once.floatType!();
  assert.equal(count(exact, 'GET /server_info'), asked + 1);
});

test('adapters over a base that vLLM was not started with: the base is brought first, and again after a restart', async (t) => {
  const versions = await makeVersions(t);
  const other = await versions.whole(9, 'other');
  const server = await standIn(t, versions, { model: other.folder });
  const vllm = openVllm(t, [server.url], { servesBase: false });
  const policy = await versions.adapter(1);
  const expected = await expectedOf(t, versions, policy);
  await vllm.bringTo(policy);
  const [drift] = await vllm.compare!({ policy, tokenIds, positions, expected, threshold: 1e-3 });
  assert(drift!.difference < agrees, String(drift!.difference));
  await server.close();
  await standIn(t, versions, { model: other.folder, port: server.port });
  const [again] = await vllm.compare!({ policy, tokenIds, positions, expected, threshold: 1e-3 });
  assert(again!.difference < agrees, String(again!.difference));
});

test('weights that do not arrive leave the server running, and never a label that is wrong', async (t) => {
  const versions = await makeVersions(t);
  const server = await standIn(t, versions);
  const vllm = openVllm(t, [server.url], { loraRank: null });
  const policy = await versions.whole(1);
  await assert.rejects(vllm.bringTo({ ...policy, folder: `${versions.folder}/gone` }));
  assert.equal(
    count(server, 'POST /collective_rpc'),
    0,
    'vLLM would look for a model of that name, and its engine would not survive it',
  );
  await vllm.bringTo(policy);
  assert.equal(((await (await fetch(`${server.url}/is_paused`)).json()) as { is_paused: boolean }).is_paused, false);
});

test('weights that a broken exchange left half done are taken for no version, the one it was started with included', async (t) => {
  const versions = await makeVersions(t);
  const base = await versions.whole(0);
  const server = await standIn(t, versions, { model: base.folder });
  const fresh = () => openVllm(t, [server.url], { loraRank: null });
  await fresh().bringTo(base);
  assert.equal(count(server, 'POST /collective_rpc'), 0, 'it has them already');
  server.faults.breaksOff = true;
  await assert.rejects(fresh().bringTo(await versions.whole(1)));
  server.faults.breaksOff = false;
  const before = count(server, 'POST /collective_rpc');
  await fresh().bringTo(base);
  assert.equal(count(server, 'POST /collective_rpc'), before + 1, 'given once more');
});

test('a server that takes weights and samples from others is found out, and given them once more', async (t) => {
  const versions = await makeVersions(t);
  const [well, sick] = [await standIn(t, versions), await standIn(t, versions)];
  const vllm = openVllm(t, [well.url, sick.url], { loraRank: null });
  sick.faults.keepsWeights = true;
  const policy = await versions.whole(1);
  await vllm.bringTo(policy);
  const request = { policy, tokenIds, positions, expected: await expectedOf(t, versions, policy), threshold: 1e-3 };
  const drifts = await vllm.compare!(request);
  const off = drifts.filter(({ difference }) => difference > 1e-3);
  assert.deepEqual(
    off.map(({ server, isReloaded }) => ({ server, isReloaded })),
    [{ server: sick.url, isReloaded: true }],
  );

  const avoiding = { ...policy, avoid: [sick.url] };
  const before = count(sick, 'POST /v1/completions');
  await Promise.all(Array.from({ length: 6 }, (_, i) => vllm.sample({ ...prompt, seed: i, policy: avoiding })));
  assert.equal(count(sick, 'POST /v1/completions'), before, 'nothing is asked there');
  await assert.rejects(
    vllm.sample({ ...prompt, policy: { ...policy, avoid: [sick.url, well.url] } }),
    coded('InferenceUnavailable', 'canary'),
  );

  sick.faults.keepsWeights = false;
  const healed = await vllm.compare!(request);
  assert(
    healed.every(({ difference }) => difference < agrees),
    JSON.stringify(healed),
  );
});

test('an engine that is dead behind a healthy /health gets no work until it generates again', async (t) => {
  const versions = await makeVersions(t);
  const [well, sick] = [await standIn(t, versions), await standIn(t, versions)];
  const said: string[] = [];
  const vllm = openVllm(t, [sick.url, well.url], {}, (line) => said.push(line));
  const policy = await versions.adapter(1);
  await vllm.bringTo(policy);
  sick.faults.isEngineDead = true;
  for (let i = 0; i < 8; i++) await vllm.sample({ ...prompt, seed: i, policy });
  assert(
    said.some((line) => line.includes(`${sick.url} is quarantined`) && line.includes('EngineCore')),
    said.join('\n'),
  );
  assert.equal((await fetch(`${sick.url}/health`)).status, 200);
  sick.faults.isEngineDead = false;
  for (let i = 0; i < 200 && !said.some((line) => line.endsWith('is back')); i++) {
    await vllm.sample({ ...prompt, seed: i, policy });
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert(said.some((line) => line.includes(`${sick.url} is back`)));
});

test('a server that takes no adapters, and one that takes no full weights, say what to start them with', async (t) => {
  const versions = await makeVersions(t);
  const server = await standIn(t, versions, { takesAdapters: false, isDevelopment: false });
  await assert.rejects(
    openVllm(t, [server.url]).bringTo(await versions.adapter(1)),
    coded('Unsupported', '--enable-lora', 'VLLM_ALLOW_RUNTIME_LORA_UPDATING=1'),
  );
  await assert.rejects(
    openVllm(t, [server.url], { loraRank: null }).bringTo(await versions.whole(1)),
    coded('Unsupported', 'VLLM_SERVER_DEV_MODE=1'),
  );
});

test('a server with a key is asked with it', async (t) => {
  const versions = await makeVersions(t);
  const server = await standIn(t, versions, { apiKey: 'a key' });
  process.env['TEST_VLLM_KEY'] = 'a key';
  t.after(() => delete process.env['TEST_VLLM_KEY']);
  const policy = await versions.adapter(1);
  const vllm = openVllm(t, [server.url], { apiKeyVar: 'TEST_VLLM_KEY' });
  await vllm.bringTo(policy);
  assert.equal((await vllm.sample({ ...prompt, policy })).tokenIds.length > 0, true);
});

const truncated = { topP: 0.6, temperature: 0.7, maxTokens: 6 };

test('what vLLM tells of truncated sampling is the sampler’s, and the policy’s is not known', async (t) => {
  const versions = await makeVersions(t);
  const server = await standIn(t, versions);
  const vllm = openVllm(t, [server.url]);
  await vllm.bringTo(versions.v0);
  const {
    tokenIds: said,
    logprobs,
    samplingLogprobs,
  } = await vllm.sample({ ...prompt, ...truncated, policy: versions.v0 });
  assert.equal(logprobs, null);
  assert.equal(samplingLogprobs?.length, said.length);
  const whole = await vllm.sample({ ...prompt, temperature: 0.7, policy: versions.v0 });
  assert.ok(whole.logprobs && !('samplingLogprobs' in whole), 'without truncation they are one');
});

test('a vLLM whose log probabilities are before the temperature is refused for training at another one than 1', async (t) => {
  const versions = await makeVersions(t);
  const server = await standIn(t, versions, { hasRawLogprobs: true });
  const vllm = openVllm(t, [server.url]);
  const policy = versions.v0;
  await vllm.bringTo(policy);
  await assert.rejects(vllm.sample({ ...prompt, policy, isTrained: true }), {
    code: 'Unsupported',
    message: /before the temperature, and this run samples at 0\.7.*--logprobs-mode processed_logprobs/,
  });
  assert.ok(await vllm.sample({ ...prompt, policy }), 'nothing of an evaluation depends on them');
  assert.ok(
    await vllm.sample({ ...prompt, policy, temperature: 1, isTrained: true }),
    'at temperature 1 they are the same',
  );
  const sound = await standIn(t, versions);
  const other = openVllm(t, [sound.url]);
  await other.bringTo(policy);
  assert.ok(await other.sample({ ...prompt, policy, isTrained: true }));
});
