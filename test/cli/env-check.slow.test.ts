/** Findings of `ratchet env check` from a rollout, with the real verifiers from the package index. */
import assert from 'node:assert/strict';
import path from 'node:path';
import { describe, test } from 'node:test';
import { checkPythonEnvironment, type EnvironmentReport } from '../../cli/python-environments/check.ts';
import { modulePaths } from '../backends/python-bridge.ts';
import { installPython } from '../python-here.ts';

const { python, why } = await installPython('verifiers-v0-requirements.txt');

describe('an environment that is checked', { skip: why }, () => {
  const check = (module: string, args: Record<string, string | number>): Promise<EnvironmentReport> => {
    process.env['PYTHONPATH'] = modulePaths.join(path.delimiter); // where its module is found
    const folder = path.dirname(path.dirname(python));
    const of = { module, api: 'v0', folder, verifiers: '0.3.1', version: '0.1.0' } as const;
    return checkPythonEnvironment({ id: module, python: of, args, passEnvironment: [] });
  };

  test('says which reward function threw, though verifiers counts it as 0', async () => {
    const { ok, lines } = await check('toy_faulty', { reward: 'inside' });
    assert(ok);
    assert.match(
      lines.join('\n'),
      /reward 0 .*\n.*! .*toy_faulty\.py:\d+ {2}the reward function said threw, which counts as 0: ValueError: no number in the answer/,
    );
  });

  test('plays two rollouts where rewards compare, and says where they are not one for each', async () => {
    const { ok, lines } = await check('toy_faulty', { reward: 'compare' });
    assert(ok, lines.join('\n'));
    assert.match(lines.join('\n'), /✓ plays: ok after one made-up answer; scored where it was played: reward 1/);
    const few = await check('toy_faulty', { reward: 'too-few' });
    assert(!few.ok);
    assert.match(
      few.lines.join('\n'),
      /✗ .*could not be scored.*longest must give a list of 2 scores, one per rollout, but 1 scores came/,
    );
  });

  test('plays a game of many turns to its end, and scores one that nothing ends', async () => {
    const game = await check('toy_multi', { max_turns: 40, need: 20 });
    assert.match(game.lines.join('\n'), /✓ plays: ok after 20 turns of made-up answers; scored .*: reward 1 /);
    const endless = await check('toy_multi', { max_turns: -1, need: 1_000_000 });
    assert(endless.ok, endless.lines.join('\n'));
    assert.match(endless.lines.join('\n'), /✓ plays: truncated after 256 turns of made-up answers, which nothing had ended; scored .*: reward 0 /); // prettier-ignore
  });

  test('says that its dataset has what JSON has not', async () => {
    const { lines } = await check('toy_columns', {});
    assert.match(lines.join('\n'), /! toy_columns: info of its dataset has values that JSON has not/);
  });

  test('whose requirements are not what its Python has fails, whoever replaced them', async () => {
    const { ok, lines } = await check('asks_otherwise', {});
    assert(!ok);
    assert.match(lines.join('\n'), /✗ it asks for packaging==0\.1, and its Python has \d[^]*set of its own/);
    assert.doesNotMatch(lines.join('\n'), /no-such-package/);
  });

  test('says which parts of its messages nothing trains on', async () => {
    const { ok, lines } = await check('toy_faulty', { how: 'image', max_turns: 2 });
    assert(ok);
    assert.match(lines.join('\n'), /! its messages have a part of the type "image_url": .* nothing trains on it/);
  });
});
