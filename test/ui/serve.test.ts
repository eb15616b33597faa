import assert from 'node:assert/strict';
import { get as ask } from 'node:http';
import { test, type TestContext } from 'node:test';
import { RunSource } from '../../ui/run-source.ts';
import { servePage } from '../../ui/serve.ts';
import type {
  EvaluationAnswer,
  EvaluationsAnswer,
  GroupAnswer,
  HistogramAnswer,
  HistoryAnswer,
  Marker,
  RolloutsAnswer,
  RunOverview,
  SearchAnswer,
  SearchesAnswer,
  SeriesAnswer,
  TimelineAnswer,
  TokensAnswer,
} from '../../ui/answers.ts';
import { RatchetError } from '../../core/errors.ts';
import { layout } from '../../runs/layout.ts';
import { writeNote } from '../../runs/metrics/notices.ts';
import { storeOf } from '../../runs/run-access.ts';
import { commitFirst, makeRun, openRoles } from '../activities/runs.ts';
import { tokenOf } from './page-token.ts';
import { harmful, recordedRun, rewound, searched } from './recorded-run.ts';

async function opened(t: TestContext) {
  const run = await recordedRun(t);
  const page = await servePage({ store: run.run.store, run: null, port: 0, ask: () => Promise.resolve(null) });
  t.after(() => page.close());
  const url = new URL(page.url);
  const token = tokenOf(page.url);
  const authorization = `Bearer ${token}`;
  const get = async <Answer>(path: string): Promise<Answer> => {
    const response = await fetch(url.origin + path, { headers: { authorization } });
    assert.equal(response.status, 200, await response.clone().text());
    return (await response.json()) as Answer;
  };
  return { run, page, url, token, authorization, get };
}

/** Asks like a browser, which may set any of these headers. */
function asked(port: string, path: string, headers: Readonly<Record<string, string>>): Promise<number> {
  return new Promise((resolve, reject) => {
    ask({ host: '127.0.0.1', port, path, headers }, (response) => {
      response.resume();
      resolve(response.statusCode!);
    }).once('error', reject);
  });
}

test('the page of a run', async (t) => {
  const recorded = await opened(t);

  await t.test('answers who has its token, and no page of another place', async () => {
    const { url, token, authorization } = recorded;
    const [port, path] = [url.port, '/api/runs/recorded'];
    assert.equal(await asked(port, path, {}), 401);
    assert.equal(await asked(port, path, { authorization: 'Bearer wrong' }), 401);
    assert.equal(await asked(port, path, { authorization }), 200);
    assert.equal(await asked(port, path, { authorization, host: 'evil.example' }), 403);
    assert.equal(await asked(port, path, { authorization, origin: 'http://evil.example' }), 403);
    // Another server of this machine is another place, too.
    assert.equal(await asked(port, path, { authorization, origin: `http://127.0.0.1:${Number(port) + 1}` }), 403);
    assert.equal(await asked(port, path, { authorization, 'sec-fetch-site': 'cross-site' }), 403);
    // Browsers send a cookie to every port of this host, so none is set and none is accepted.
    assert.equal(await asked(port, path, { cookie: `ratchet_${port}=${token}; token=${token}` }), 401);
    assert.equal(await asked(port, `${path}?token=${token}`, {}), 401);
  });

  await t.test('returns only the page without a token, which has no data of any run', async () => {
    const { url, token, authorization } = recorded;
    for (const place of ['/', '/page.js', '/page.css', `/?token=${token}`]) {
      const answer = await fetch(url.origin + place, { redirect: 'manual' });
      assert.deepEqual([answer.status, answer.headers.get('set-cookie')], [200, null], place);
      const text = await answer.text();
      assert.ok(!text.includes('recorded') && !text.includes(token), place);
      assert.equal(await asked(url.port, place, { 'sec-fetch-site': 'cross-site' }), 403, place);
      assert.equal(await asked(url.port, place, { host: 'evil.example' }), 403, place);
    }
    for (const place of ['/api/settings', '/api/runs', '/api/runs/recorded/live', '/constructor'])
      assert.equal(await asked(url.port, place, {}), 401, place);
    const settings = await fetch(`${url.origin}/api/settings`, { headers: { authorization } });
    assert.deepEqual(Object.keys((await settings.json()) as object), [
      'run',
      'compare',
      'isReport',
      'canSteer',
      'madeAt',
    ]);
  });

  await t.test('only shows: nothing can be sent to it, and nothing outside of the runs is read', async () => {
    const { url, authorization } = recorded;
    for (const method of ['POST', 'PUT', 'DELETE'])
      assert.equal(
        (await fetch(`${url.origin}/api/runs/recorded`, { method, headers: { authorization } })).status,
        405,
      );
    for (const path of ['/api/runs/..%2f..%2fetc', '/api/runs/missing', '/api/runs/recorded/constructor', '/x'])
      assert.equal((await fetch(url.origin + path, { headers: { authorization } })).status, 404, path);
    const refused = await fetch(`${url.origin}/api/runs/recorded/rollouts?step=x`, { headers: { authorization } });
    assert.equal(refused.status, 400);
    assert.match(await refused.text(), /step: expected a number/);
  });

  await t.test('lets no text become code: a strict policy, and all there is below 300 kB', async () => {
    const { url, authorization } = recorded;
    const sizes = await Promise.all(
      ['/', '/page.js', '/page.css'].map(async (path) => {
        const response = await fetch(url.origin + path, { headers: { authorization } });
        const policy = response.headers.get('content-security-policy')!;
        assert.match(policy, /default-src 'none'; script-src 'self'/);
        assert.doesNotMatch(policy, /unsafe/);
        return (await response.arrayBuffer()).byteLength;
      }),
    );
    assert(sizes.every((size) => size > 0));
    assert(sizes.reduce((a, b) => a + b) < 300_000, String(sizes));
  });

  await t.test('shows every rollout: found by a filter, in its group, token by token', async () => {
    const { get } = recorded;
    const found = await get<RolloutsAnswer>('/api/runs/recorded/rollouts?outcome=infra_failure');
    assert.equal(found.matches, 1);
    const [{ step, group, index }] = found.rollouts as [RolloutsAnswer['rollouts'][number]];
    const shown = await get<GroupAnswer>(`/api/runs/recorded/group?step=${step}&group=${group}`);
    assert.equal(shown.rollouts.length, 4);
    const failed = shown.rollouts[index]!;
    assert.equal(failed.reward, null);
    assert.equal(failed.advantage, null);
    assert(failed.error!.includes(harmful[0]));
    const [best, worst] = [0, 1].map((i) => shown.rollouts.filter(({ reward }) => reward !== null)[i]!);
    assert.equal(Math.sign(best!.advantage! - worst!.advantage!), Math.sign(best!.reward! - worst!.reward!));
    assert.deepEqual(best!.turns[1]!.heard[0]!.role, 'tool');
    const tokens = await get<TokensAnswer>(`/api/runs/recorded/tokens?step=${step - 1}&group=${group - 2}&index=0`);
    const [turn] = tokens.turns;
    assert.equal(turn!.pieces.length, turn!.logprobs!.length);
    assert(turn!.mask.every((mask) => mask === 1));
    const { logprobs: trainer, entropies } = turn!.trained!;
    for (const [i, sampler] of turn!.logprobs!.entries()) {
      assert(Math.abs(trainer[i]! - 1.25 * sampler) < 1e-5, `${trainer[i]} of ${sampler}`);
      assert(Math.abs(entropies[i]! + 2.5 * sampler) < 1e-5, `${entropies[i]} of ${sampler}`);
    }
    const text = await get<RolloutsAnswer>('/api/runs/recorded/rollouts?text=onerror');
    assert(text.matches >= 1);
    assert.equal(text.rollouts[0]!.said.includes(harmful[0]), true);
  });

  await t.test('tells what is committed within a second to everybody who looks', async () => {
    const { run, url, authorization } = recorded;
    const looking = await fetch(`${url.origin}/api/runs/recorded/live`, { headers: { authorization } });
    const reader = looking.body!.pipeThrough(new TextDecoderStream()).getReader();
    let heard = '';
    const until = async (wanted: RegExp): Promise<void> => {
      while (!wanted.test(heard)) heard += (await reader.read()).value ?? '';
    };
    await until(/"step":6/);
    await run.store.append(layout.metrics(), `${JSON.stringify({ step: 7, lineage: 'main', 'train/later': 1 })}\n`);
    await until(/train\/later/);
    await reader.cancel();
  });

  await t.test('tells what somebody notes about a run within a second, and marks it on the curves', async () => {
    const { run, url, authorization, get } = recorded;
    const looking = await fetch(`${url.origin}/api/runs/recorded/live`, { headers: { authorization } });
    const reader = looking.body!.pipeThrough(new TextDecoderStream()).getReader();
    let heard = '';
    const until = async (wanted: RegExp): Promise<void> => {
      while (!wanted.test(heard)) heard += (await reader.read()).value ?? '';
    };
    await until(/"step":6/);
    await writeNote(run.run, `the judge was updated ${harmful[0]}`);
    await until(/the judge was updated/);
    await reader.cancel();
    const { notices, noticesOf } = await get<RunOverview>('/api/runs/recorded');
    assert.deepEqual([notices.length, noticesOf, notices[0]!.kind, notices[0]!.step], [1, 1, 'note', 6]);
    const markers = await get<readonly Marker[]>('/api/runs/recorded/markers');
    assert(
      markers.some(({ kind, step, text }) => kind === 'notice' && step === 6 && text.startsWith('note: the judge')),
    );
  });

  await t.test('shows the searches for better prompts: a tree with its front, and how each differs', async () => {
    const { run, url, authorization, get } = recorded;
    assert.deepEqual(await get<SearchesAnswer>('/api/runs/recorded/searches'), { searches: [], damaged: [] });
    await searched(run);
    const { searches } = await get<SearchesAnswer>('/api/runs/recorded/searches');
    const [{ id, ...listed }] = searches as [SearchesAnswer['searches'][number]];
    assert.deepEqual(
      [listed.step, listed.bestScore, listed.startScore, listed.calls, listed.maxCalls, listed.trial?.after],
      [4, 2 / 3, 0.25, 44, 60, 0.5],
    );
    const { candidates } = await get<SearchAnswer>(`/api/runs/recorded/search?id=${encodeURIComponent(id)}`);
    assert.deepEqual(
      candidates.map(({ parents, bestAt, scored, isBest }) => [parents, bestAt, scored, isBest]),
      [
        [[], 0, 3, false],
        [[0], 1, 3, false],
        [[1], 1, 2, false],
        [[1, 2], 3, 3, true],
      ],
    );
    assert.match(candidates[3]!.fromParent, /^--- candidate 1\n.*\n[^+]*\+Check it\.\n/s);
    assert.match(candidates[3]!.fromStart, /^-Reverse the text\.$/m);
    for (const other of ['gepa/missing/', '../recorded/', `${id}../../`]) {
      const path = `/api/runs/recorded/search?id=${encodeURIComponent(other)}`;
      assert.equal((await fetch(url.origin + path, { headers: { authorization } })).status, 404, other);
    }
  });

  await t.test('tells where a run stands, its curves and what happened to it', async () => {
    const { run, get } = recorded;
    const overview = await get<RunOverview>('/api/runs/recorded');
    assert.equal(overview.step, 6);
    assert.equal(overview.maxSteps, 12);
    assert.equal(overview.state, 'not running');
    assert.equal(overview.lost.rollouts, 3);
    const names = 'name=train/reward&name=eval/reverse-text/reward/mean&name=missing';
    const { path, left } = await get<SeriesAnswer>(`/api/runs/recorded/series?${names}`);
    assert.deepEqual(path.step.slice(-7), [1, 2, 3, 4, 5, 6, 7]);
    assert.equal(path.values['eval/reverse-text/reward/mean']![path.step.indexOf(4)], 0.4);
    assert(path.values['missing']!.every((value) => value === null));
    assert.deepEqual(left, []);
    const spent = ['spent/money', 'cost/money'];
    const { path: paid } = await get<SeriesAnswer>(
      `/api/runs/recorded/series?${spent.map((name) => `name=${name}`).join('&')}`,
    );
    const [soFar, ofSteps] = spent.map((name) => paid.values[name]!.slice(-7));
    const sum = ofSteps!.slice(0, 6).reduce<number>((total, money) => total + (money ?? 0), 0);
    assert(Math.abs(soFar!.at(-2)! - sum) < 1e-8, 'the seventh row has no cost');
    assert.match(overview.cost!.money!, /^0\.00\d+ EUR$/);
    assert.equal(overview.cost!.leftBehind, null);
    assert.deepEqual(
      overview.cost!.parts.map(({ name }) => name),
      ['training'],
    );
    const few = await get<SeriesAnswer>('/api/runs/recorded/series?name=train/reward&points=3');
    assert.equal(few.stepsPerPoint, Math.ceil(path.step.length / 3));
    const markers = await get<readonly Marker[]>('/api/runs/recorded/markers');
    assert(markers.some(({ kind, step, text }) => kind === 'fault' && step === 3 && /3 rollouts/.test(text)));
    assert(markers.some(({ text }) => text.includes(harmful[0])));
    const weights = markers.filter(({ kind }) => kind === 'weights');
    assert.deepEqual(
      weights.map(({ step, text }) => `${step} ${text}`),
      [1, 2, 3, 4, 5, 6].map((step) => `${step} servers have v${step}`),
    );
    const { lanes } = await get<TimelineAnswer>('/api/runs/recorded/timeline');
    const played = lanes.find(({ activity }) => activity === 'playGroups')!;
    assert.deepEqual(
      played.spans.map(({ end, attempt }) => `${end} ${attempt}`),
      ['done 1', 'done 1', 'failed 1', 'done 2', 'done 1', 'done 1', 'done 1'],
    );
    const trained = lanes.find(({ activity }) => activity === 'trainBatch')!.spans;
    assert.equal(trained.at(-1)!.to, null);
    const gone = trained.find(({ end }) => end === 'failed')!;
    assert.deepEqual([gone.text, gone.to! - gone.from], ['trainBatch step 5', 1_000]);
    const before = await get<HistoryAnswer>('/api/runs/recorded/history');
    assert.equal(before.issued, 12);
    assert.equal(before.counts['trained'], 12);
    assert.equal(before.isSound, true);
    const { columns } = await get<HistogramAnswer>('/api/runs/recorded/histogram');
    const { of } = await get<RolloutsAnswer>('/api/runs/recorded/rollouts?limit=1');
    const rewarded = columns.flatMap(({ counts }) => counts).reduce((a, b) => a + b, 0);
    assert.equal(rewarded, of - 1); // one has failed
    assert.deepEqual((await get<EvaluationsAnswer>('/api/runs/recorded/evals')).evaluations, []);
    assert.equal((await get<Record<string, string>>('/api/runs/recorded/settings'))['max_steps'], '12');
    await rewound(run);
    await new Promise((resolve) => setTimeout(resolve, 3_100)); // so long an overview holds
    assert.match((await get<RunOverview>('/api/runs/recorded')).cost!.leftBehind!, /EUR$/, 'steps 5 and 6 stay paid');
    const { lineages, superseded } = await get<HistoryAnswer>('/api/runs/recorded/history');
    assert.deepEqual(
      lineages.map(({ lineage, from, head }) => [lineage, from?.step ?? null, head]),
      [
        ['main', null, 6],
        ['l2', 4, 4],
      ],
    );
    assert.equal(superseded, 4);
    const after = await get<SeriesAnswer>('/api/runs/recorded/series?name=train/reward');
    assert.equal(after.path.step.at(-1), 4);
    assert.deepEqual(
      after.left.map(({ step }) => [...step]),
      [[4, 5, 6, 7]],
    );
    assert((await get<readonly Marker[]>('/api/runs/recorded/markers')).some(({ kind }) => kind === 'rewind'));
  });
});

test('a folder of verifiers’ results opens as it is: of both versions, row by row, and nothing outside of it', async (t) => {
  const folder = new URL('../data/evals/', import.meta.url).href;
  const page = await servePage({ store: folder, run: null, port: 0, ask: () => Promise.resolve(null) });
  t.after(() => page.close());
  const { origin } = new URL(page.url);
  const headers = { authorization: `Bearer ${tokenOf(page.url)}` };
  const get = async (path: string) => fetch(origin + path, { headers });
  assert.deepEqual(await (await get('/api/runs')).json(), []);
  const { evaluations, incomplete } = (await (await get('/api/evals')).json()) as EvaluationsAnswer;
  assert.deepEqual(incomplete, []);
  assert.deepEqual(
    evaluations.map(({ environment, name }) => `${environment} ${name}`),
    [
      'toy_single org/words-1b, d44fc336',
      'toy_single org/words-3b, 7aeaaec6',
      'toy_tool org/words-1b, e39b9c72',
      'toy_v1 org/words-1b, 2b414ca7',
    ],
  );
  for (const { id, rows, mean } of evaluations) {
    const answer = await get(`/api/eval?id=${encodeURIComponent(id)}`);
    const { rows: shown, leftOut } = (await answer.json()) as EvaluationAnswer;
    assert.equal(shown.length + leftOut, rows);
    assert(mean !== null && shown.every(({ asked }) => asked.length > 0));
  }
  assert.equal((await get('/api/eval?id=..%2F..')).status, 404);
});

test('the fleet is shown to who has the token, where the page is that of a folder', async (t) => {
  const { run } = await makeRun(t, {}, 'alone');
  await storeOf(run).put(layout.run(), Buffer.from(JSON.stringify({ schemaVersion: 1, name: 'alone' })));
  const pools = [{ pool: 'gpus', trouble: 'no poller' }];
  const get = async (of: Partial<Parameters<typeof servePage>[0]>, hasToken = true) => {
    const page = await servePage({ store: run.store, run: null, port: 0, ask: () => Promise.resolve(null), ...of });
    t.after(() => page.close());
    const headers = hasToken ? { authorization: `Bearer ${tokenOf(page.url)}` } : {};
    const response = await fetch(`${new URL(page.url).origin}/api/fleet`, { headers });
    return [response.status, response.status === 200 ? await response.json() : null];
  };
  const asked = { pools: () => Promise.resolve(pools) };
  assert.deepEqual(await get(asked), [200, { pools }]);
  assert.deepEqual(await get({}), [200, { pools: null }]);
  assert.deepEqual(await get(asked, false), [401, null]);
  assert.deepEqual(await get({ ...asked, run: 'alone' }), [404, null]);
});

test('a page that was opened to steer passes on what is asked of a run from the page itself', async (t) => {
  const { run } = await makeRun(t, {}, 'steered');
  await storeOf(run).put(layout.run(), Buffer.from(JSON.stringify({ schemaVersion: 1, name: 'steered' })));
  const told: string[] = [];
  const page = await servePage({
    store: run.store,
    run: 'steered',
    port: 0,
    ask: () => Promise.resolve(null),
    steer: (name, { what, value }) => {
      told.push(`${name} ${what} ${value}`);
      if (what === 'rewind') throw new RatchetError('ConfigInvalid', 'nothing was changed');
      return Promise.resolve('paused');
    },
  });
  t.after(() => page.close());
  const { origin } = new URL(page.url);
  const authorization = `Bearer ${tokenOf(page.url)}`;
  const post = async (body: unknown, headers: Readonly<Record<string, string>>): Promise<string> => {
    const options = { method: 'POST', body: JSON.stringify(body), headers: { authorization, ...headers } };
    const response = await fetch(`${origin}/api/runs/steered/steer`, options);
    return `${response.status} ${(await response.text()).trim()}`;
  };
  const type = { 'content-type': 'application/json' };
  assert.equal(await post({ what: 'pause', value: '' }, { ...type, origin }), '200 {"message":"paused"}');
  assert.match(await post({ what: 'rewind', value: '3' }, { ...type, origin }), /^400 .*nothing was changed/);
  assert.match(await post({ what: 'remove', value: '' }, { ...type, origin }), /^400 .*pause, resume/);
  assert.match(await post({ what: 'pause', value: '' }, type), /^403/);
  assert.match(await post({ what: 'pause', value: '' }, { origin }), /^403/);
  assert.match(await post({ what: 'pause', value: '' }, { ...type, origin: 'http://evil.example' }), /^403/);
  assert.deepEqual(told, ['steered pause ', 'steered rewind 3']);
});

test('of a run that is being asked, or is running and does not answer, the page does not say that it stands still', async (t) => {
  const test = await makeRun(t, {}, 'asked');
  const { spec, store, run } = test;
  await store.put(layout.run(), Buffer.from(JSON.stringify({ schemaVersion: 1, name: 'asked', spec })));
  await commitFirst(test, openRoles());
  const answers: ((told: 'silent' | null) => void)[] = [];
  const source = new RunSource(run, () => new Promise((resolve) => answers.push(resolve)));
  const state = async (): Promise<string> => (await source.overview()).state;
  assert.equal(await state(), 'not running');
  for (const [answer, meanwhile, then] of [
    ['silent', 'asking it', 'running, but its orchestrator does not answer'],
    [null, 'running, but its orchestrator does not answer', 'not running'],
    [null, 'not running', 'not running'],
  ] as const) {
    const asked = source.askRun();
    assert.equal(await state(), meanwhile);
    answers.pop()!(answer);
    await asked;
    assert.equal(await state(), then);
  }
});
