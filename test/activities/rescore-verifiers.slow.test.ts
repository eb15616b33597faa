/** Stored rollouts of verifiers environments are scored again by the real package. */
import assert from 'node:assert/strict';
import path from 'node:path';
import { after, test, type TestContext } from 'node:test';
import type { EvaluatedEnvironment } from '../../core/eval/evaluation.ts';
import type { JsonValue } from '../../config/run-spec.ts';
import { closeProcesses } from '../../host/processes-open.ts';
import { modulePaths } from '../backends/python-bridge.ts';
import { installPython } from '../python-here.ts';
import { evaluateAll, evaluationFolder, evaluationId, inputFor, rowsIn, serve } from './evaluation-runs.ts';
import { rescoreAll, rubricFile } from './rescores.ts';

const installed = await installPython('verifiers-v0-requirements.txt');
const { why: skip } = installed;
process.env['PYTHONPATH'] = modulePaths.join(path.delimiter);
after(() => closeProcesses());

function ofVerifiers(module: string, args: Record<string, JsonValue> = {}): EvaluatedEnvironment {
  const folder = path.dirname(path.dirname(installed.python));
  return { id: module, name: module, args, python: { module, api: 'v0', folder, verifiers: '0.3.1', version: '' } };
}

const answer = ({ content, times }: { content: string; times: number }): string => {
  const word = /Spell (\S+) backwards/.exec(content)?.[1] ?? 'nothing';
  const right = word.split('').reverse().join('');
  return times % 2 === 0 ? `<answer>${right}</answer>` : `I say ${'no '.repeat(times)}`;
};

async function evaluated(t: TestContext, environment: EvaluatedEnvironment) {
  const [folder, server] = [await evaluationFolder(t), await serve(t, { answer, varies: 'count' })];
  const input = inputFor(folder, server, { environment, numExamples: 3, rolloutsPerExample: 4, maxConcurrent: 1 });
  await evaluateAll(input);
  const rescored = (rubric: EvaluatedEnvironment | null, id: string) =>
    rescoreAll({
      subject: { kind: 'evaluation', place: input.results },
      environments: [environment],
      rubric,
      failedOnly: false,
      results: { ...input.results, prefix: `rescores/${id}/` },
    });
  return { folder, server, rescored, asked: server.answered.length };
}

test(
  'by their own rubric in Python they have the rewards they had, by another one its rewards',
  { skip },
  async (t) => {
    const { folder, server, rescored, asked } = await evaluated(t, ofVerifiers('toy_single'));
    const same = await rescored(null, 'same');
    assert.deepEqual([same.rollouts, same.rescored, same.changed], [12, 12, 0]);
    const before = await rowsIn(path.join(folder, evaluationId));
    assert.deepEqual(
      (await rowsIn(same.environments[0]!.folder)).map(({ reward, metrics, prompt }) => [reward, metrics, prompt]),
      before.map(({ reward, metrics, prompt }) => [reward, metrics, prompt]),
    );
    const other = await rescored(ofVerifiers('toy_single', { group: true }), 'compared');
    assert.ok(other.changed > 0);
    const rows = await rowsIn(other.environments[0]!.folder);
    assert.ok(rows.every(({ metrics }) => 'shortest' in (metrics as object)));
    const kit = JSON.stringify(new URL('../../backends/environments/kit.ts', import.meta.url).href);
    const text = `import { rubric as of } from ${kit};
export const rubric = of([{ name: 'length', weight: 1, score: ({ completion, example }) => completion.length + example.prompt.length }]);`;
    const native = await rescored(await rubricFile(folder, 'native.ts', text), 'native');
    assert.equal(native.changed, 12);
    assert.equal(server.answered.length, asked);
  },
);

test('whose rows have columns of a live state are scored in place, and are refused by name', { skip }, async (t) => {
  const { rescored } = await evaluated(t, { ...ofVerifiers('toy_single'), stateColumns: ['info'] });
  await assert.rejects(rescored(null, 'same'), /^Unsupported: .*toy_single.* scores in place/);
});
