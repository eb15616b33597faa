/** Options of the functions that make environments: what nothing reads is an error, since tsx checks no types. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, describe, test } from 'node:test';
import { loadEnvironment } from '../../backends/environments/load.ts';
import {
  combineRubrics,
  judgeReward,
  listDataset,
  multiTurn,
  openPython,
  rubric,
  singleTurn,
  tool,
  toolEnvironment,
  z,
} from '../../backends/environments/kit.ts';

const folder = mkdtempSync(path.join(os.tmpdir(), 'ratchet-known-options-'));
after(() => rmSync(folder, { recursive: true }));

const dataset = listDataset([{ prompt: 'Say yes.', answer: 'yes' }]);
const right = { name: 'right', weight: 1, score: () => 1 };
const single = { name: 'shop', dataset, evalDataset: dataset, rubric: rubric([right]) };
const several = { ...single, maxTurns: 2, setup: () => 0, respond: () => ({ state: 0, end: 'ok' as const }) };
const look = { name: 'look', description: 'Looks.', parameters: z.object({}), run: () => 'nothing' };
const judge = { ask: () => Promise.resolve('1') };

/** Each maker with a key more than it reads. */
const cases: readonly (readonly [string, () => unknown, RegExp])[] = [
  ['singleTurn', () => singleTurn({ ...single, evaldataset: dataset } as typeof single), /singleTurn\(…\) has no option "evaldataset"\. Did you mean "evalDataset"\?/], // prettier-ignore
  ['multiTurn', () => multiTurn({ ...several, max_turns: 3 } as typeof several), /multiTurn\(…\) has no option "max_turns"\. Did you mean "maxTurns"\?/], // prettier-ignore
  ['toolEnvironment', () => toolEnvironment({ ...single, tools: [tool(look)], maxTurns: 2, systemPrompt: 'Be brief.' } as never), /toolEnvironment\(…\) has no option "systemPrompt"\. A system prompt is the first message of an example's prompt, .* Its options are: name, dataset, evalDataset, rubric, tools, maxTurns, demonstrate, isDeterministic\./], // prettier-ignore
  ['tool', () => tool({ ...look, descripton: 'Looks around.' } as typeof look), /tool\(…\) has no option "descripton"\. Did you mean "description"\?/], // prettier-ignore
  ['rubric', () => rubric([{ ...right, wieght: 2 } as typeof right]), /Reward function "right" has no option "wieght"\. Did you mean "weight"\?/], // prettier-ignore
  ['combineRubrics', () => combineRubrics([{ rubric: rubric([right]), prefix: 'a' } as never]), /combineRubrics\(\[…\]\): a part has no option "prefix"/], // prettier-ignore
  ['judgeReward', () => judgeReward({ name: 'good', weight: 1, judge, prompt: () => 'Good?', parser: Number } as never), /judgeReward\(…\) has no option "parser"\. Did you mean "parse"\?/], // prettier-ignore
];

describe('options of environment makers', () => {
  for (const [name, make, says] of cases)
    test(`${name} refuses an option that it does not read`, () => {
      assert.throws(make, says);
    });

  test('openPython refuses an option that it does not read', async () => {
    await assert.rejects(openPython({ timeout: 3 } as never), /openPython\(…\) has no option "timeout"/);
  });

  test('an environment of a file is refused with the place of the option', async () => {
    const file = path.join(folder, 'shop.ts');
    writeFileSync(
      file,
      `import { listDataset, rubric, singleTurn } from 'ratchet-rl/environments';
const dataset = listDataset([{ prompt: 'Say yes.', answer: 'yes' }]);
export function loadEnvironment() {
  return singleTurn({ name: 'shop', dataset, evalDataset: dataset, rubric: rubric([]), systemPrompt: 'Be brief.' });
}
`,
    );
    await assert.rejects(loadEnvironment(file, {}), (error: Error) => {
      assert.match(error.message, /shop\.ts:4:\d+\n {2}TypeError: singleTurn\(…\) has no option "systemPrompt"/);
      return true;
    });
  });

  test('a key beside those of an environment is refused, a field of a class is not', async () => {
    const written = (name: string, gives: string): string => {
      const file = path.join(folder, name);
      writeFileSync(
        file,
        `import { listDataset, rubric, singleTurn } from 'ratchet-rl/environments';
const dataset = listDataset([{ prompt: 'Say yes.', answer: 'yes' }]);
const made = singleTurn({ name: 'shop', dataset, evalDataset: dataset, rubric: rubric([]) });
class Shop { stock = 3; constructor() { Object.assign(this, made); } }
export function loadEnvironment() { return ${gives}; }
`,
      );
      return file;
    };
    const extra = written('extra.ts', '{ ...made, isDeterministc: false }');
    await assert.rejects(
      loadEnvironment(extra, {}),
      /what loadEnvironment\(args\) gives has no option "isDeterministc"\. Did you mean "isDeterministic"\?/,
    );
    assert.equal((await loadEnvironment(written('class.ts', 'new Shop()'), {})).name, 'shop');
  });
});
