import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { findSearchFolder, readSearchFolder } from '../../cli/gepa/search-folder.ts';
import { describeSearch } from '../../cli/gepa/show.ts';

async function writeSearch(folder: string, secondsAgo: number, trial: object | null = null): Promise<void> {
  await mkdir(folder, { recursive: true });
  const info = { sample_type: 'gepa_candidate', system_prompt: 'Be brief.', is_best: true, val_subscores: { 0: 1 } };
  await writeFile(path.join(folder, 'results.jsonl'), `${JSON.stringify({ info })}\n`);
  if (trial) await writeFile(path.join(folder, 'trial.json'), JSON.stringify(trial));
  const at = Date.now() / 1000 - secondsAgo;
  await utimes(path.join(folder, 'results.jsonl'), at, at);
}

test('a branch is found by its run, its workflow, its folder and its environment; another run’s is not', async (t) => {
  const project = await mkdtemp(path.join(tmpdir(), 'ratchet-show-'));
  t.after(() => rm(project, { recursive: true, force: true }));
  const run = path.join(project, 'outputs/words');
  const [first, second] = ['gepa/say--words/step_2', 'gepa/say--words/step_4'].map((name) => path.join(run, name));
  const later = path.join(run, 'lineages/l2/gepa/say--words/step_3');
  await writeSearch(first!, 30);
  await writeSearch(second!, 20, { examples: 40, before: 0.25, after: 0.75, version: 'v5' });
  await writeSearch(path.join(project, 'outputs/words-2/gepa/say--words-2/step_9'), 5);
  for (const name of ['words', 'words-2']) await writeFile(path.join(project, 'outputs', name, 'run.json'), '{}');
  const found = (name: string): Promise<string> => findSearchFolder(name, project);
  assert.equal(await found('words'), second);
  assert.equal(await found('outputs/words'), second);
  assert.equal(await found('words.gepa.say.v2'), first);
  assert.equal(await found('outputs/words/gepa/say--words/step_2'), first);
  await writeSearch(later, 10);
  assert.equal(await found('words'), later);
  assert.equal(await found('words.gepa.say.l2.v3'), later);
  assert.match(await found('say'), /words-2/);
  await assert.rejects(found('nothing'), /a run that branched/);
  const shown = describeSearch((await readSearchFolder(second!))!);
  assert.match(shown, /played once more on v5 and 40 examples .*the prompt in use 0\.250, the best 0\.750/);
});

test('a search is found by what began it: its environment, the file of one, and the workflow that the Temporal UI shows', async (t) => {
  const project = await mkdtemp(path.join(tmpdir(), 'ratchet-show-'));
  t.after(() => rm(project, { recursive: true, force: true }));
  const folder = path.join(project, 'outputs/gepa/shout--small/5cb9f81f');
  await writeSearch(folder, 10);
  for (const name of ['shout', './shout.ts', '5cb9f81f', 'gepa.shout.5cb9f81f'])
    assert.equal(await findSearchFolder(name, project), folder, name);
});

test('the start’s score says on how many examples it was taken where they are fewer than the best’s', () => {
  const candidates = [
    { prompt: '', parents: [], scores: [0, null, 0.5] },
    { prompt: 'Shout.', parents: [0], scores: [1, 1, 1] },
  ];
  const figures = { best: 1, calls: 9, maxCalls: 10, stopReason: 'budget', comparison: null, trial: null };
  const names = { folder: '/search', environment: 'shout', model: 'small', reflectionModel: 'large' };
  assert.match(
    describeSearch({ ...names, ...figures, candidates }),
    /1\.000 on 3 examples {2}the start 0\.250 on 2 of them/,
  );
});

test('a damaged file of a search is named with its line, and one that is gone by where it should be', async (t) => {
  const project = await mkdtemp(path.join(tmpdir(), 'ratchet-show-'));
  t.after(() => rm(project, { recursive: true, force: true }));
  const folder = path.join(project, 'outputs/words/gepa/say--words/step_2');
  await writeSearch(folder, 10);
  const [results, metadata] = ['results.jsonl', 'metadata.json'].map((name) => path.join(folder, name));
  const row = (info: object) => `${JSON.stringify({ info: { sample_type: 'gepa_candidate', ...info } })}\n`;
  for (const text of ['{"info"', 'null\n', row({ parent_candidate_idxs: 7 }), row({ val_subscores: { 1e9: 1 } })]) {
    await writeFile(results!, text);
    await assert.rejects(
      readSearchFolder(folder),
      (error: Error) => error.message.includes(`${results}, line 1: `),
      text,
    );
  }
  await writeSearch(folder, 10);
  for (const text of ['', '[]', '{"ratchet":{"comparison":{}}}']) {
    await writeFile(metadata!, text);
    await assert.rejects(readSearchFolder(folder), (error: Error) => error.message.includes(`${metadata}: `), text);
  }
  await rm(results!);
  await mkdir(path.join(folder, 'search'));
  await assert.rejects(findSearchFolder('words', project), (error: Error) => error.message.includes(results!));
});
