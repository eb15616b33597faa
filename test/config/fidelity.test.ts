/** Run files of other systems: what they mean here is what their own config code makes of them, or a line says that it is not. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { compared, isOneLine } from './home/compare.ts';
import { homeFiles, verifiersFiles } from './home/files.ts';

const files = homeFiles();
const ofVerifiers = verifiersFiles();
const comparisons = [...files, ...ofVerifiers].map((file) => ({ file, comparison: compared(file) }));
const nameOf = ({ path, release, date, commit }: (typeof files)[number]): string =>
  `${path} of ${release ?? `${date} (${commit})`}`;

describe('run files of prime-rl and of verifiers', () => {
  test('a value that is another at home is named in a line', () => {
    const silent = comparisons.flatMap(({ file, comparison }) =>
      comparison.kind === 'refused'
        ? []
        : comparison.differences
            .filter(({ line }) => line === null)
            .map(({ what, home, here }) => `${nameOf(file)}: ${what}: ${JSON.stringify([home, here])}`),
    );
    assert.deepEqual(silent, []);
  });

  test('what is refused is refused in lines that say what was expected', () => {
    const unclear = comparisons.flatMap(({ file, comparison }) =>
      comparison.kind === 'refused' && !comparison.problems.every(isOneLine) ? [nameOf(file)] : [],
    );
    assert.deepEqual(unclear, []);
  });

  test('a file of one of its commands alone starts no run, and most say so in one line with what took its place', () => {
    const starts = [null, 'rl', 'vf-rl', 'hosted', 'sft'];
    const parts = comparisons.filter(({ file }) => !starts.includes(file.entry));
    const refused = parts.flatMap(({ comparison }) => (comparison.kind === 'refused' ? [comparison.problems] : []));
    assert.equal(refused.length, parts.length);
    assert.ok(refused.filter(({ length }) => length === 1).length >= 0.9 * parts.length);
  });

  test('most of what starts a run of prime-rl 0.4 and of today loads', () => {
    const starts = comparisons.filter(({ file }) => file.release !== undefined && file.entry === 'rl');
    const loaded = starts.filter(({ comparison }) => comparison.kind === 'loaded');
    assert.ok(starts.length >= 70 && loaded.length >= 54, `${loaded.length} of ${starts.length}`);
  });

  test('a file of supervised training loads, but for pictures, made-up rows and parts of a file', () => {
    const sft = comparisons.filter(({ file }) => file.entry === 'sft');
    const refused = sft.filter(({ comparison }) => comparison.kind === 'refused').map(({ file }) => file.text);
    const known = /vlm|fake|toml_files|^lr = 0|slurm_(?:rl|sft)|slim-sft|^(?:#.*\n)?output_dir = .*\n\n\[slurm\]/m;
    assert.deepEqual(
      refused.filter((text) => !known.test(text)),
      [],
    );
    assert.ok(sft.length - refused.length >= 43, `${sft.length - refused.length} of ${sft.length}`);
  });

  test('of verifiers’ own trainer and of Hosted Training all loads that home takes', () => {
    const refused = comparisons.filter(
      ({ file, comparison }) =>
        (file.entry === 'vf-rl' || file.entry === 'hosted') && file.home && comparison.kind === 'refused',
    );
    // Its batch cannot be shared out among the 6 GPUs that it names, which RLConfig asserts there, and not where it was recorded.
    assert.deepEqual(
      refused.map(({ file }) => file.path),
      ['configs/rl/sentence-repeater.toml'],
    );
  });
});
