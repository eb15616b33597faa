/** A file of the user's with code in it. */
export interface CodeRef {
  /** Absolute. */
  readonly path: string;
  /** Hex, as the file was when the config was read; null until then. */
  readonly sha256: string | null;
}
