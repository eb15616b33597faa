/** A file that is laid over those before it. */
export interface ConfigLayer {
  /** Name given by the user. */
  readonly file: string;
  /** Dotted, where the file is a table of the others' and no file of its own: `trainer`. */
  readonly section?: string;
}
