import type { ConfigLayer } from '../../core/config-layer.ts';
import type { TomlFile } from './parse-toml.ts';
import { findPositions, type KeyPath, type Positions } from './positions.ts';
import { merged, setAt, type Table } from './tables.ts';

/** Several files read as one: `rl @ base.toml @ mine.toml --trainer @ trainer.toml`. */

export interface Layer extends ConfigLayer {
  readonly text: string;
  /** The result of an earlier parse. */
  readonly toml?: TomlFile;
}

/**
 * Whether a first file is no run but one of its tables: it then counts as that table (`rl --trainer @ t.toml
 * --orchestrator @ o.toml`).
 */
export function isTableAlone(file: string, over: readonly Pick<Layer, 'file' | 'section'>[]): boolean {
  return over[0]?.file === file && over[0].section !== undefined;
}

/** The table that a file's own tables lie in, as paths have it: dashes and underscores are the same. */
function sectionPath({ section }: Pick<Layer, 'section'>): readonly string[] {
  return section === undefined ? [] : section.replaceAll('-', '_').split('.');
}

/** Tables are merged key by key from left to right; anything else is replaced, lists as a whole. */
export function mergedLayers(layers: readonly { readonly layer: Layer; readonly table: Table }[]): Table {
  let result: Table = {};
  for (const { layer, table } of layers) {
    const path = sectionPath(layer);
    const whole: Table = path.length === 0 ? table : {};
    if (path.length > 0) setAt(whole, path, table);
    result = merged(result, whole);
  }
  return result;
}

/** Positions of values: in the last file that has each. */
export function layeredPositions(layers: readonly Layer[]): Positions {
  const found = layers
    .map((layer) => ({ file: layer.file, at: sectionPath(layer), positions: findPositions(layer.text) }))
    .reverse();
  return {
    files: layers.map(({ file }) => file),
    at: (path: KeyPath) => {
      for (const { file, at, positions } of found) {
        if (!at.every((part, i) => path[i] === part)) continue;
        const position = path.length === at.length ? undefined : positions.at(path.slice(at.length));
        if (position) return layers.length === 1 ? position : { ...position, file };
      }
      return undefined;
    },
  };
}
