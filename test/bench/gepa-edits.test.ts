import assert from 'node:assert/strict';
import { test } from 'node:test';
import { editWorlds, searchByEdits } from '../../bench/gepa-edits.ts';
import { defaultSettings } from '../../core/gepa/settings.ts';

/** `bench gepa` has the figures of 200 seeds; these bounds are wide enough for any 60. */
for (const { name, gain: least, ...world } of editWorlds)
  test(`where edits are ${name}, a search seldom returns a prompt that is worse than its start`, () => {
    const found = Array.from({ length: 60 }, (_, seed) =>
      searchByEdits({ seed, ...world }, defaultSettings({ seed, maxCalls: 500, trainSize: 100, valSize: 50 })),
    );
    const worse = found.filter(({ gain }) => gain < 0).length;
    const gain = found.reduce((sum, one) => sum + one.gain, 0) / found.length;
    assert.ok(worse <= 7, `${worse} of 60 are worse`);
    assert.ok(gain >= least, `a gain of ${gain}`);
    assert.ok(found.every(({ calls }) => calls <= 500));
  });
