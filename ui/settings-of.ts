import { flat } from '../config/changed-settings.ts';
import { nameInFile } from '../config/setting-names.ts';
import { liveSettings } from '../core/rl/live-settings.ts';
import type { Overrides } from '../core/rl/run-state.ts';
import { storedSpec } from '../runs/forms/stored-spec.ts';
import type { RunPlace } from '../runs/run-access.ts';

/**
 * Every setting of a run by its name in a run file; with the value that `ratchet set` gave it behind an arrow, where that
 * changes what the run learns: it is another experiment than one that was left alone.
 */
export async function settingsOf(run: RunPlace, overrides: Overrides): Promise<Readonly<Record<string, string>>> {
  const { spec } = await storedSpec(run);
  const settings = Object.fromEntries([...flat(spec)].map(([path, value]) => [nameInFile(path), value]));
  for (const { key, isLearned } of Object.values(liveSettings)) {
    const set = isLearned === true ? overrides[key] : undefined;
    const name = nameInFile(key);
    if (set === undefined || settings[name] === JSON.stringify(set)) continue;
    settings[name] = `${settings[name] ?? '–'} → ${JSON.stringify(set)}`;
  }
  return settings;
}
