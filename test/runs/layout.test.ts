import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { layout, stepOf } from '../../runs/layout.ts';
import { lineageName, lineageNumber, policyName, versionName } from '../../core/names.ts';

const steps = fc.nat(100_000);
const digest = 'abcdef0123456789';
const lineages = fc.constantFrom('main', 'rewound-1', 'l2');

describe('where things are in a run', () => {
  test('the step of every key is found again', () =>
    fc.assert(
      fc.property(steps, lineages, fc.integer({ min: 1, max: 9 }), (step, lineage, attempt) => {
        const keys = [
          layout.commit(lineage, step),
          layout.scored(lineage, { step, first: 1, last: 64 }, 'chunk_1_of_2'),
          layout.batchPart(lineage, step, digest),
          layout.packed(lineage, step, digest),
          layout.plan(lineage, step, attempt, digest),
          `${layout.weights(lineage, step)}model.safetensors`,
          layout.weights(lineage, step),
          `${layout.checkpoint(lineage, step)}manifest.json`,
          `${layout.evaluation(lineage, 'words', 'run', step)}metadata.json`,
        ];
        for (const key of keys) assert.equal(stepOf(key), step, key);
      }),
    ));

  test('a key without a step has none, and a step is a whole name', () => {
    for (const key of [
      'run.json',
      'claims/claim_3.json',
      'weights/',
      'logs/attempt_2/train.log',
      'x/misstep_3/y',
      'step_3x/y',
    ]) {
      assert.equal(stepOf(key), null, key);
    }
  });

  test('no two things share a key', () =>
    fc.assert(
      fc.property(fc.uniqueArray(steps, { minLength: 2, maxLength: 6 }), (numbers) => {
        const keys = numbers.flatMap((step) =>
          ['main', 'other'].flatMap((lineage) => [
            layout.commit(lineage, step),
            layout.plan(lineage, step, 1, digest),
            layout.plan(lineage, step, 2, digest),
            layout.plan(lineage, step, 1, digest.replace('a', 'b')),
            layout.batchPart(lineage, step, digest),
            layout.packed(lineage, step, digest),
            layout.weights(lineage, step),
            layout.checkpoint(lineage, step),
            layout.round(lineage, step, 1, 2),
            layout.round(lineage, step, 1, 3),
          ]),
        );
        assert.equal(new Set(keys).size, keys.length);
      }),
    ));

  test('the first lineage is at the top of the run, later ones in a folder of their own', () => {
    assert.equal(layout.weights('main', 3), 'weights/step_3/');
    assert.equal(layout.weights('rewound-1', 3), 'lineages/rewound-1/weights/step_3/');
    assert.equal(layout.commit('main', 3), 'lineages/main/steps/step_3.json');
  });

  test('things of one step are below the prefix that lists them', () => {
    for (const lineage of ['main', 'other']) {
      assert(layout.weights(lineage, 3).startsWith(layout.allWeights(lineage)));
      assert(layout.checkpoint(lineage, 3).startsWith(layout.allCheckpoints(lineage)));
      assert(layout.commit(lineage, 3).startsWith(layout.commits(lineage)));
      assert(layout.batchPart(lineage, 3, digest).startsWith(layout.allBatches(lineage)));
      assert(layout.packed(lineage, 3, digest).startsWith(layout.allBatches(lineage)));
      assert(layout.plan(lineage, 3, 2, digest).startsWith(layout.allBatches(lineage)));
    }
    assert(layout.claim(1).startsWith(layout.claims()));
    assert(layout.warmUp(50).startsWith(layout.allWarmUps()));
    assert(layout.log(1, 'train').startsWith(layout.allLogs()));
  });

  test('a model named with its owner does not open another folder', () => {
    assert.equal(layout.evaluation('main', 'words', 'owner/model', 5), 'evals/words--owner--model/step_5/');
  });
});

describe('versions of a policy', () => {
  test('a replay that gave other weights has a name and a folder of its own', () => {
    assert.equal(policyName('run', 'l2', 12), 'run:l2:12');
    assert.equal(policyName('run', 'main', 12, 1), 'run:main:12.r1');
    assert.deepEqual([{ step: 12 }, { step: 12, replay: 2 }].map(versionName), ['v12', 'v12.r2']);
    assert.equal(layout.weights('main', 12, 1), 'weights/step_12.r1/');
    assert.equal(layout.canary('main', 12, 1), 'canaries/step_12.r1.json');
    assert.notEqual(layout.plan('main', 13, 1, digest, 1), layout.plan('main', 13, 1, digest));
    assert.equal(stepOf(`${layout.weights('l2', 12, 2)}model.safetensors`), 12);
  });

  test('lineages are numbered in the order they are begun', () => {
    assert.deepEqual([1, 2, 3].map(lineageName), ['main', 'l2', 'l3']);
    for (const number of [1, 2, 10]) assert.equal(lineageNumber(lineageName(number)), number);
  });
});
