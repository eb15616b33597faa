/** A run of which something is broken, half-written or of another version: the page says what, shows the rest, and waits for nothing. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { cp, mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { layout } from '../../runs/layout.ts';
import type { ListedRun, RunOverview, SearchesAnswer, SeriesAnswer } from '../../ui/answers.ts';
import { routes } from '../../ui/routes.ts';
import { servePage } from '../../ui/serve.ts';
import { tokenOf } from './page-token.ts';
import { recordedRun, searched } from './recorded-run.ts';

interface Broken {
  readonly harm: (folder: string) => Promise<void>;
  /** Which questions are answered with why they cannot be, in these words; all others are answered. */
  readonly refused?: readonly [routes: readonly string[], why: RegExp];
}

const nothingRefused: NonNullable<Broken['refused']> = [[], /./];
const everything = Object.keys(routes);
const write = async (folder: string, name: string, text: string | Uint8Array): Promise<void> => {
  await mkdir(path.dirname(path.join(folder, name)), { recursive: true });
  await writeFile(path.join(folder, name), text);
};
/** Rows that no Ratchet writes, and the half of one. */
const strangeRows = [
  'null',
  '[1]',
  '{"step":"x"}',
  '{"step":1e999,"lineage":"main"}',
  '{"step":1,"lineage":"__proto__","__proto__":3,"constructor":4}',
  '{"step":-1,"lineage":"main","a":1}',
  '{"step":2,"lineage":"main","a":',
].join('\n');
const ofOneRollout = ['group', 'tokens'];

const broken: Readonly<Record<string, Broken>> = {
  whole: { harm: () => Promise.resolve() },
  'record-cut': {
    harm: async (folder) => {
      const text = await readFile(path.join(folder, layout.run()), 'utf8');
      await write(folder, layout.run(), text.slice(0, 200));
    },
  },
  'record-is-a-pipe': {
    harm: async (folder) => {
      await rm(path.join(folder, layout.run()));
      execFileSync('mkfifo', [path.join(folder, layout.run())]);
    },
    refused: [everything, /run\.json: expected a file, found a FIFO/],
  },
  'of-a-later-version': {
    harm: async (folder) => {
      const key = layout.commit('main', 6);
      const commit = JSON.parse(await readFile(path.join(folder, key), 'utf8')) as { schemaVersion: number };
      await write(folder, key, JSON.stringify({ ...commit, schemaVersion: commit.schemaVersion + 1 }));
    },
    refused: [
      ['markers', 'history', 'settings'],
      /step_6\.json: expected a commit of version \d or older, found version \d\. A newer Ratchet wrote it/,
    ],
  },
  'no-steps': {
    harm: async (folder) => {
      const record = await readFile(path.join(folder, layout.run()));
      await rm(folder, { recursive: true });
      await write(folder, layout.run(), record);
    },
    refused: [
      [...ofOneRollout, 'playing-one'],
      /There is no group 11 of step 6|Rollout 11\/0 is neither in play nor scored/,
    ],
  },
  'metrics-strange': { harm: (folder) => write(folder, layout.metrics(), `\xff\0\n${strangeRows}`) },
  'notice-half-written': { harm: (folder) => write(folder, layout.notice('main.step_3.note'), '{"kind":') },
  'search-half-written': {
    harm: async (folder) => {
      const place = layout.promptBranch('main', 'words', 'x', [2]);
      await write(folder, `${place}results.jsonl`, '{"a');
      await write(folder, `${place}metadata.json`, '[]');
    },
  },
  'index-of-other-bytes': {
    harm: async (folder) => {
      const place = layout.rolloutIndex('main');
      for (const name of await readdir(path.join(folder, place))) await write(folder, place + name, 'other bytes');
    },
    refused: [['rollouts', 'histogram', 'example', ...ofOneRollout], /It is made anew by npx ratchet-rl index/],
  },
  'rollouts-of-other-bytes': {
    harm: async (folder) => {
      for (const name of await readdir(path.join(folder, 'rollouts'), { recursive: true }))
        if (layout.isScored(name)) await write(folder, `rollouts/${name}`, 'other bytes');
    },
    refused: [[...ofOneRollout, 'playing-one'], /scored\.jsonl\.gz, line 1: expected JSON/],
  },
  'logs-of-other-bytes': { harm: (folder) => write(folder, layout.log(1, 'train'), Buffer.from([255, 27, 91, 10, 0])) },
};

const asked: Readonly<Record<string, string>> = {
  series: '?name=train/reward&name=a&name=__proto__&name=constructor',
  group: '?step=6&group=11',
  tokens: '?step=6&group=11&index=0',
  'playing-one': '?group=11&index=0',
  example: '?environment=reverse-text&id=1',
};
/** They are asked for one that is there. */
const ofOne = ['eval', 'search'];

test('whatever of a run is broken, each question is answered, or refused with what to do, and the other runs are shown', async (t) => {
  const run = await recordedRun(t);
  await searched(run);
  const all = path.join(path.dirname(run.folder), 'all');
  for (const [name, { harm }] of Object.entries(broken)) {
    const folder = path.join(all, name);
    await cp(run.folder, folder, { recursive: true });
    const text = await readFile(path.join(folder, layout.run()), 'utf8');
    await writeFile(path.join(folder, layout.run()), text.replaceAll('"recorded"', JSON.stringify(name)));
    await harm(folder);
  }
  const store = pathToFileURL(`${all}/`).href;
  const page = await servePage({ store, run: null, port: 0, ask: () => Promise.resolve(null) });
  t.after(() => page.close());
  const { origin } = new URL(page.url);
  const headers = { authorization: `Bearer ${tokenOf(page.url)}` };
  const get = async (path: string): Promise<{ readonly status: number; readonly text: string }> => {
    const response = await fetch(origin + path, { headers, signal: AbortSignal.timeout(60_000) });
    return { status: response.status, text: await response.text() };
  };
  const read = async <Answer>(run: string, route: string): Promise<Answer> =>
    JSON.parse((await get(`/api/runs/${run}${route}`)).text) as Answer;

  const listed = JSON.parse((await get('/api/runs')).text) as readonly ListedRun[];
  assert.deepEqual(listed.map(({ run }) => run).sort(), Object.keys(broken).sort());
  for (const [name, { refused = nothingRefused }] of Object.entries(broken))
    for (const route of everything.filter((one) => !ofOne.includes(one))) {
      const { status, text } = await get(`/api/runs/${name}${route === '' ? '' : `/${route}`}${asked[route] ?? ''}`);
      const what = `${route} of ${name}: ${status} ${text.slice(0, 200)}`;
      if (!refused[0].includes(route)) assert.equal(status, 200, what);
      else assert(status >= 400 && refused[1].test(text), what);
    }

  const told = await read<RunOverview>('of-a-later-version', '');
  assert.equal(told.state, 'damaged');
  assert.match(told.damage!, /A newer Ratchet/);
  const begun = await read<RunOverview>('no-steps', '');
  assert.deepEqual([begun.step, begun.state], [0, 'nothing committed yet']);
  const { damagedNotices, step } = await read<RunOverview>('notice-half-written', '');
  assert.deepEqual([damagedNotices.length, step], [1, 6]);
  assert.match(damagedNotices[0]!, /main\.step_3\.note\.json: expected JSON/);
  const { searches, damaged } = await read<SearchesAnswer>('search-half-written', '/searches');
  assert.deepEqual([searches.length, damaged.length], [1, 1]);
  const { path: drawn } = await read<SeriesAnswer>('metrics-strange', '/series?name=train/reward&name=__proto__');
  assert.equal(Object.getPrototypeOf(drawn.values), Object.prototype);
});
