import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import { answerReflection, answerTask, makeWorld } from '../../bench/gepa-world.ts';
import { uniform } from '../../core/random.ts';

/**
 * The world's own answers were compared with those of the server that gepa's figures were measured against: 240 worlds of 120 seeds, and 120,000 answers to
 * random prompts and feedback, all alike. This digest holds them where they are: that server gives the same one.
 */
test('the simulated world is the one that gepa was measured in', () => {
  const digest = createHash('sha256');
  for (let seed = 0; seed < 20; seed++) {
    const { rules, owner, start, train, val, test } = makeWorld(seed, {
      components: 1 + (seed % 3),
      train: 30,
      val: 20,
      test: 10,
    });
    digest.update(JSON.stringify([rules, owner, start, train, val, test]));
    for (let i = 0; i < 50; i++) {
      const has = (id: string, share: number): boolean => uniform('world', seed, i, id) < share;
      const ids = [...Object.keys(rules), 'D00', 'D03', 'D07'];
      const lines = ids.filter((id) => has(id, 0.4)).map((id) => `- [${id}] ${rules[id] ?? 'x'}`);
      const missing = Object.keys(rules)
        .filter((id) => has(`missing ${id}`, 0.2))
        .map((id) => `MISSING: [${id}] ${rules[id]}`);
      digest.update(answerTask(seed, lines.join('\n'), val[i % 20]!.input));
      digest.update(answerReflection(seed, [...lines, ...missing].join('\n'), i % 3));
    }
  }
  assert.equal(digest.digest('hex').slice(0, 32), 'cbae8c2ab6103ffeb6d43337f8f64282');
});

test('a prompt with the rules that tasks need scores higher than one without, and decoys do harm', () => {
  const { rules, train } = makeWorld(0, { components: 1, train: 100, val: 1, test: 1 });
  const followed = (prompt: readonly string[]): number =>
    train.reduce((sum, { input }) => sum + answerTask(0, prompt.join('\n'), input).split(/\bR\d\d/).length - 1, 0);
  const all = Object.keys(rules).map((id) => `[${id}]`);
  assert(followed(all) > 3 * followed([]));
  assert(followed([...all, '[D00]', '[D01]', '[D02]']) < followed(all));
});
