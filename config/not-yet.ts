import type { Own } from './dialects/dialect.ts';
import { gpusFeature, settingsToCome, torchFeature, waitsFor } from './settings/later.ts';
import { placesOf } from './dialects/places.ts';
import { formatPath, type KeyPath, pathKey } from './toml/positions.ts';
import type { JsonValue } from './run-spec.ts';
import { isTable, type Table, valueAt } from './toml/tables.ts';

/** Where a file has a setting whose feature is missing (`settingsToCome`). */
export interface UnsupportedSetting {
  /** In our own words. */
  readonly path: KeyPath;
  readonly value: JsonValue;
  readonly feature: string;
  /** The behaviour in its place; null = nothing to report. */
  readonly here: string | null;
  /** Advice; the field is refused, because a run without it would train differently. Null if it is kept in the spec. */
  readonly instead: string | null;
  /** Every key written for it, in the file's words, with its value. Empty without any. */
  readonly written: readonly { readonly path: KeyPath; readonly value: JsonValue }[];
}

/** What a config asks for and is not there. `file` is the config in its own words, `own` in ours. */
export function unsupportedSettings(file: Table, own: Own): UnsupportedSetting[] {
  const told = new Set<string>();
  const isVllm = valueAt(own.table, ['inference', 'kind']) === 'vllm';
  const isOneOnCuda =
    valueAt(own.table, ['trainer', 'provider']) === 'cuda' && valueAt(own.table, ['trainer', 'gpus']) === 1;
  const kind = valueAt(own.table, ['trainer', 'kind']);
  const trainer = typeof kind === 'string' ? kind : 'onnx';
  const isHonoured = (field: string): boolean =>
    (isVllm && ofVllm.has(field)) ||
    (isOneOnCuda && field === 'trainer.gpus') ||
    (trainer === 'torch' && ofTorch.has(settingsToCome[field]!.feature));
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
          const { feature, here = null } = waitsFor(field, trainer);
          return [{ path, value, feature, here, instead, written }];
        }),
  );
}

/** These fields, which otherwise wait for GPU support, are arguments of vLLM. */
const ofVllm: ReadonlySet<string> = new Set(['inference.gpus', 'inference.vllm']);

const ofTorch: ReadonlySet<string> = new Set([torchFeature, gpusFeature]);

/** The values in a table, each with its path; lists are values. */
function leavesAt(file: Table, path: KeyPath): { path: KeyPath; value: JsonValue }[] {
  const value = valueAt(file, path);
  if (value === undefined) return [];
  if (!isTable(value) || Object.keys(value).length === 0) return [{ path, value: value as JsonValue }];
  return Object.keys(value).flatMap((key) => leavesAt(file, [...path, key]));
}

/** The part of the spec that keeps them. */
export function keptLater(settings: readonly UnsupportedSetting[]): Record<string, JsonValue> {
  return Object.fromEntries(settings.map(({ path, value }) => [formatPath(path), value]));
}
