/** Reads the transport's arrays as msgspec does: a file that is cut off, or has too little, is an error. */
export interface ReadMicroBatch {
  readonly input_ids: number[];
  readonly loss_mask: boolean[];
  readonly advantages: number[];
  readonly inference_logprobs: number[];
  readonly sequence_lengths: number[];
  readonly temperatures: number[];
  readonly seq_lens: number[];
  readonly rl_weights: number[] | null;
  readonly ce_weights: number[] | null;
}

export function readMicroBatches(bytes: Buffer, fields: readonly string[]): ReadMicroBatch[] {
  const read = decode(bytes) as unknown[][];
  if (read.length === 0) throw new Error('IndexError: the list of micro-batches is empty');
  return read.map(
    (slots) => Object.fromEntries(fields.map((name, i) => [name, slots[i]])) as unknown as ReadMicroBatch,
  );
}

/** The samples of a batch of v0.4.0, each as a micro-batch of its own. */
export function readTrainingBatch(bytes: Buffer): ReadMicroBatch[] {
  const [examples] = decode(bytes) as [[number[], boolean[], number[], boolean[], number[], number[], null, number][]];
  return examples.map(([prompt, promptMask, completion, mask, logprobs, temperatures, , advantage]) => {
    const ids = [...prompt, ...completion];
    return {
      input_ids: ids,
      loss_mask: [...promptMask, ...mask],
      advantages: ids.map(() => advantage),
      inference_logprobs: [...prompt.map(() => 0), ...logprobs],
      sequence_lengths: [ids.length],
      temperatures: [...prompt.map(() => temperatures[0] ?? 1), ...temperatures],
      seq_lens: [ids.length],
      rl_weights: null,
      ce_weights: null,
    };
  });
}

function decode(bytes: Buffer): unknown {
  let at = 0;
  const value = (): unknown => {
    const code = bytes.readUInt8(at++);
    if (code < 0x80) return code;
    if (code >= 0x90 && code < 0xa0) return list(code & 0x0f);
    if (code >= 0xa0 && code < 0xc0) return text(code & 0x1f);
    switch (code) {
      case 0xc0:
        return null;
      case 0xc2:
      case 0xc3:
        return code === 0xc3;
      case 0xcb:
        return bytes.readDoubleBE((at += 8) - 8);
      case 0xcc:
        return bytes.readUInt8(at++);
      case 0xcd:
        return bytes.readUInt16BE((at += 2) - 2);
      case 0xce:
        return bytes.readUInt32BE((at += 4) - 4);
      case 0xdc:
        return list(bytes.readUInt16BE((at += 2) - 2));
      case 0xdd:
        return list(bytes.readUInt32BE((at += 4) - 4));
      default:
        throw new Error(`DecodeError: code ${code}`);
    }
  };
  const list = (length: number): unknown[] => Array.from({ length }, value);
  const text = (length: number): string => bytes.toString('utf8', at, (at += length));
  const read = value();
  if (at !== bytes.length) throw new Error('DecodeError: trailing bytes');
  return read;
}
