import type { ModelConfig } from '../model/config.ts';

/** Bytes of keys and values for one row of `length` positions. */
export function rowBytes(config: ModelConfig, length: number): number {
  return 4 * rowFloats(config, length);
}

/** Values in the keys and values of one row of `length` positions. */
export function rowFloats(config: ModelConfig, length: number): number {
  return 2 * config.layerCount * config.keyValueHeadCount * config.headSize * length;
}
