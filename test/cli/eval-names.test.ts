/** Evaluations by short names: listed, compared, and named at the end of another one. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, rm, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { placeOf } from '../../cli/eval/figures.ts';
import { besideEvaluation } from '../../cli/eval/find.ts';
import { newestFirst } from '../../cli/eval/list.ts';
import type { FoundEvaluation } from '../../runs/evaluations/evaluation.ts';

const program = fileURLToPath(new URL('../../cli/ratchet.mjs', import.meta.url));

interface Written {
  readonly environment?: string;
  readonly model: string;
  readonly id: string;
  readonly reward: number;
  readonly secondsAgo: number;
}

async function project(t: TestContext, evaluations: readonly Written[]) {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-eval-names-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  for (const { environment = 'shop', model, id, reward, secondsAgo } of evaluations) {
    const own = path.join(folder, 'outputs/evals', `${environment}--${model}`, id);
    await mkdir(own, { recursive: true });
    const rows = [0, 1].map((i) => ({ example_id: i, reward, prompt: [], completion: [], answer: '', metrics: {} }));
    await writeFile(path.join(own, 'results.jsonl'), rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
    const about = { env_id: environment, model, num_examples: 2, rollouts_per_example: 1, avg_reward: reward };
    await writeFile(path.join(own, 'metadata.json'), JSON.stringify(about));
    const at = Date.now() / 1000 - secondsAgo;
    await utimes(path.join(own, 'results.jsonl'), at, at);
  }
  const ratchet = (...args: string[]) =>
    new Promise<{ code: number; out: string; err: string }>((resolve) => {
      execFile(process.execPath, [program, ...args], { cwd: folder }, (error, out, err) =>
        resolve({ code: typeof error?.code === 'number' ? error.code : 0, out, err }),
      );
    });
  return { folder, ratchet };
}

const three: readonly Written[] = [
  { model: 'weak', id: '11111111', reward: 0.25, secondsAgo: 30 },
  { model: 'weak', id: '22222222', reward: 0.5, secondsAgo: 20 },
  { model: 'strong', id: '33333333', reward: 0.75, secondsAgo: 10 },
];

test('evaluations are listed, and compared by the names that the list has', async (t) => {
  const { ratchet } = await project(t, three);
  const { out } = await ratchet('eval', 'list');
  assert.deepEqual(
    out.trim().split('\n').map((line) => line.split(/ {2,}/)),
    [
      ['environment', 'model', 'reward', 'examples', 'id or step', 'where'],
      ['shop', 'strong', '0.750', '2 × 1', '33333333', 'outputs/evals/shop--strong/33333333'],
      ['shop', 'weak', '0.500', '2 × 1', '22222222', 'outputs/evals/shop--weak/22222222'],
      ['shop', 'weak', '0.250', '2 × 1', '11111111', 'outputs/evals/shop--weak/11111111'],
    ],
  ); // prettier-ignore
  const compared = await ratchet('eval', 'compare', 'shop--weak', 'shop--strong');
  assert.equal(compared.code, 0, compared.err);
  assert.match(compared.out, /^A {2}shop · weak · 22222222 .*\nB {2}shop · strong · 33333333/);
  assert.match(compared.out, /B against A: \+0\.250 reward per example/);
  const byId = await ratchet('eval', 'show', '11111111', '--json');
  assert.equal((JSON.parse(byId.out) as { id: string }[])[0]!.id, '11111111');
  const none = await ratchet('eval', 'compare', 'shop--other', 'shop--strong');
  assert.equal(none.code, 1);
  assert.match(none.err, /shop--other .*\(npx ratchet-rl eval list\)/);
});

test('an evaluation of a run is named by a path that can be typed here', () => {
  const placed = (where: string) => placeOf({ where });
  const uri = (folder: string) => `${pathToFileURL(path.resolve(folder)).href}/`;
  assert.equal(placed(uri('outputs/my run/evals/shop--weak/step_0')), 'outputs/my run/evals/shop--weak/step_0');
  assert.equal(placed('outputs/evals/shop--weak/11111111'), 'outputs/evals/shop--weak/11111111');
  assert.equal(placed('file:///elsewhere/run/step_0/'), '/elsewhere/run/step_0/');
  assert.equal(placed('s3://bucket/run/step_0/'), 's3://bucket/run/step_0/');
});

test('the newest version of a run is listed first, so that a short list has it', () => {
  const found = [
    { id: 'newer' },
    { id: 'older' },
    ...[0, 10, 20].map((step) => ({ id: `step_${step}`, lineage: 'main' })),
  ];
  const listed = newestFirst(found as unknown as FoundEvaluation[]).map(({ id }) => id);
  assert.deepEqual(listed, ['newer', 'older', 'step_20', 'step_10', 'step_0']);
});

test('an evaluation is compared with the newest of another model, else with the newest other one', async (t) => {
  const { folder } = await project(t, [...three, { environment: 'words', model: 'weak', id: '44444444', reward: 1, secondsAgo: 5 }]); // prettier-ignore
  const before = process.cwd();
  t.after(() => process.chdir(before));
  process.chdir(folder);
  const beside = async (name: string): Promise<string | undefined> =>
    (await besideEvaluation(path.join(folder, 'outputs/evals', name)))?.other;
  assert.equal(await beside('shop--strong/33333333'), 'outputs/evals/shop--weak/22222222');
  assert.equal(await beside('shop--weak/11111111'), 'outputs/evals/shop--strong/33333333');
  assert.equal(await beside('words--weak/44444444'), undefined);
});
