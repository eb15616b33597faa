import type { ModelConfig } from '../model/config.ts';

/** Bytes of keys and values that one row of `length` positions takes. */
export function rowBytes(config: ModelConfig, length: number): number {
  return 4 * rowFloats(config, length);
}

/** Keys and values that one row of `length` positions takes. */
export function rowFloats(config: ModelConfig, length: number): number {
  return 2 * config.layerCount * config.keyValueHeadCount * config.headSize * length;
}
