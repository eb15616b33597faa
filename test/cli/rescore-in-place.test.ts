/** What scores in place is refused where `ratchet rescore` is typed, before anything starts. */
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { refuseInPlace } from '../../cli/rescore/rescore-environments.ts';

type Rescored = Parameters<typeof refuseInPlace>[0]['environments'][number];

const refused = { code: 'Unsupported', message: /scores in place: .*--rubric FILE/ };

test('a rubric that reads what ended with its rollout is refused, and every other is let through', async (t) => {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-rescore-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const file = async (name: string, text: string): Promise<Rescored> => {
    await writeFile(path.join(folder, name), text);
    return { id: path.join(folder, name), name, args: {} };
  };
  const environment = (more: string): string => `
    import { listDataset, rubric, singleTurn } from 'ratchet-rl/environments';
    const data = listDataset([{ prompt: 'a', answer: 'A' }]);
    const scored = rubric([{ name: 'one', weight: 1, score: () => 1 }]);
    export const loadEnvironment = () => ({ ...singleTurn({ name: 'mine', dataset: data, evalDataset: data, rubric: scored }) ${more} });
  `;
  const agent = (command: readonly string[] | null): Rescored =>
    ({ id: 'repair', name: 'repair', args: {}, program: { score: { command } } }) as unknown as Rescored;
  const inPlace = await file('in-place.ts', environment(", scoring: 'in_place'"));
  const stored = await file('stored.ts', environment(''));
  const rubric = await file(
    'rubric.ts',
    `import { rubric as of } from 'ratchet-rl/environments'; export const rubric = of([{ name: 'one', weight: 1, score: () => 1 }]);`,
  );
  const python = { id: 'words', name: 'words', args: {}, python: {} } as unknown as Rescored;

  for (const one of [agent(['pytest']), inPlace]) {
    await assert.rejects(refuseInPlace({ environments: [stored, one], rubric: null }), refused);
    await assert.rejects(refuseInPlace({ environments: [stored], rubric: one }), refused);
    await refuseInPlace({ environments: [one], rubric });
  }
  await assert.rejects(refuseInPlace({ environments: [agent(['pytest'])], rubric: null }), /^RatchetError: repair scores in place|repair scores in place/); // prettier-ignore
  await refuseInPlace({ environments: [agent(null), stored, python], rubric: null });
  const gone = { id: path.join(folder, 'gone.ts'), name: 'gone.ts', args: {} } as Rescored;
  await refuseInPlace({ environments: [gone], rubric: null }); // a worker may have it
});
