import type { Own } from './dialects/dialect.ts';
import { settingsToCome, waitsFor } from './settings/later.ts';
import { placesOf } from './dialects/places.ts';
import { formatPath, type KeyPath, pathKey } from './positions.ts';
import type { JsonValue } from './run-spec.ts';
import { isTable, type Table, valueAt } from './tables.ts';

/** A field whose feature is not there. */
export interface LaterSetting {
  /** In our own words. */
  readonly path: KeyPath;
  readonly value: JsonValue;
  readonly feature: string;
  /** What is done in its place; null = nothing is to be said of that. */
  readonly here: string | null;
  /** What to do instead: it is refused, because without it the run would train something else. Null where it is kept in the spec. */
  readonly instead: string | null;
  /** Every key that was written for it, in the words of its file and with what stands there. Empty where nothing was. */
  readonly written: readonly { readonly path: KeyPath; readonly value: JsonValue }[];
}

/** What a config asks for and is not there. `file` is the config in its own words, `own` in ours. */
export function laterSettings(file: Table, own: Own): LaterSetting[] {
  const told = new Set<string>();
  const isVllm = valueAt(own.table, ['inference', 'kind']) === 'vllm';
  const isOneOnCuda =
    valueAt(own.table, ['trainer', 'provider']) === 'cuda' && valueAt(own.table, ['trainer', 'gpus']) === 1;
  const kind = valueAt(own.table, ['trainer', 'kind']);
  const trainer = typeof kind === 'string' ? kind : 'onnx';
  const isHonoured = (field: string): boolean =>
    (isVllm && ofVllm.has(field)) || (isOneOnCuda && field === 'trainer.gpus');
  return Object.entries(settingsToCome).flatMap(([field, { instead = null, met }]) =>
    isHonoured(field)
      ? []
      : placesOf(field, own.table).flatMap((path) => {
          const value = valueAt(own.table, path) as JsonValue;
          if (value === met) return [];
          const written = own
            .sourcesOf(path)
            .flatMap((source) => leavesAt(file, source))
            .filter((leaf) => !told.has(pathKey(leaf.path)) && told.add(pathKey(leaf.path)));
          const { feature, here = null } = waitsFor(field, value, trainer);
          return [{ path, value, feature, here, instead, written }];
        }),
  );
}

/** What waits for GPUs elsewhere is what a vLLM is started with. */
const ofVllm: ReadonlySet<string> = new Set(['inference.gpus', 'inference.vllm']);

/** The values in a table, each with its path; lists are values. */
function leavesAt(file: Table, path: KeyPath): { path: KeyPath; value: JsonValue }[] {
  const value = valueAt(file, path);
  if (value === undefined) return [];
  if (!isTable(value) || Object.keys(value).length === 0) return [{ path, value: value as JsonValue }];
  return Object.keys(value).flatMap((key) => leavesAt(file, [...path, key]));
}

/** The part of the spec that keeps them. */
export function keptLater(settings: readonly LaterSetting[]): Record<string, JsonValue> {
  return Object.fromEntries(settings.map(({ path, value }) => [formatPath(path), value]));
}
