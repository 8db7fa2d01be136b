// What LLVM's scheduling models say of single instructions. Reads lines `KEY HEX...`, the bytes of one instruction each;
// prints for the processor that is its argument the model's width and resources, and of each instruction
//
//     KEY UOPS LATENCY ADVANCE RESOURCE:CYCLES...
//
// ADVANCE: by how many cycles later than its address an instruction with a memory operand needs its registers. Instructions
// that the model does not know are left out. What llvm-mca sums up to a block's throughput is made by the same code of LLVM.
#include <cstdio>
#include <iostream>
#include <llvm/MC/MCAsmInfo.h>
#include <llvm/MC/MCContext.h>
#include <llvm/MC/MCDisassembler/MCDisassembler.h>
#include <llvm/MC/MCInst.h>
#include <llvm/MC/MCInstrAnalysis.h>
#include <llvm/MC/MCInstrInfo.h>
#include <llvm/MC/MCRegisterInfo.h>
#include <llvm/MC/MCSubtargetInfo.h>
#include <llvm/MC/MCTargetOptions.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/MCA/CustomBehaviour.h>
#include <llvm/MCA/InstrBuilder.h>
#include <llvm/MCA/Support.h>
#include <llvm/Support/TargetSelect.h>
#include <sstream>
#include <string>
#include <vector>

using namespace llvm;

int main(int argc, char **argv) {
  if (argc != 2)
    return 2;
  LLVMInitializeX86TargetInfo();
  LLVMInitializeX86TargetMC();
  LLVMInitializeX86Disassembler();
  std::string error, triple = "x86_64-unknown-linux-gnu";
  const Target *target = TargetRegistry::lookupTarget(triple, error);
  if (!target)
    return 1;
  MCTargetOptions options;
  std::unique_ptr<MCRegisterInfo> registers(target->createMCRegInfo(triple));
  std::unique_ptr<MCAsmInfo> assembler(target->createMCAsmInfo(*registers, triple, options));
  // The widest set of features: an instruction that the processor lacks is never met on it.
  std::unique_ptr<MCSubtargetInfo> subtarget(target->createMCSubtargetInfo(triple, argv[1], ""));
  std::unique_ptr<MCInstrInfo> instructions(target->createMCInstrInfo());
  std::unique_ptr<MCInstrAnalysis> analysis(target->createMCInstrAnalysis(instructions.get()));
  MCContext context(Triple(triple), assembler.get(), registers.get(), subtarget.get());
  std::unique_ptr<MCDisassembler> disassembler(target->createMCDisassembler(*subtarget, context));
  const MCSchedModel &model = subtarget->getSchedModel();
  std::vector<uint64_t> masks(model.getNumProcResourceKinds());
  mca::computeProcResourceMasks(model, masks);

  printf("width %u\n", model.IssueWidth);
  printf("units");
  for (unsigned i = 0; i < model.getNumProcResourceKinds(); i++)
    printf(" %u", model.getProcResource(i)->NumUnits);
  printf("\n");

  mca::InstrumentManager instruments(*subtarget, *instructions);
  mca::InstrBuilder builder(*subtarget, *instructions, *registers, analysis.get(), instruments, 100);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream in(line);
    unsigned key, byte;
    in >> key >> std::hex;
    std::vector<uint8_t> bytes;
    while (in >> byte)
      bytes.push_back(byte);
    MCInst inst;
    uint64_t size;
    if (disassembler->getInstruction(inst, size, bytes, 0, nulls()) != MCDisassembler::Success ||
        size != bytes.size())
      continue;
    SmallVector<mca::Instrument *> none;
    auto made = builder.createInstruction(inst, none);
    if (!made) {
      consumeError(made.takeError());
      continue;
    }
    const mca::InstrDesc &desc = (*made)->getDesc();
    unsigned latency = 0;
    for (const mca::WriteDescriptor &write : desc.Writes)
      latency = std::max(latency, write.Latency);
    int advance = 0;
    for (const mca::ReadDescriptor &read : desc.Reads)
      advance = std::max(advance, subtarget->getReadAdvanceCycles(model.getSchedClassDesc(read.SchedClassID), read.UseIndex, 0));
    printf("%u %u %u %d", key, desc.NumMicroOps, latency, advance);
    for (const auto &use : desc.Resources) {
      unsigned cycles = use.second.size();
      for (unsigned i = 1; cycles && i < masks.size(); i++)
        if (masks[i] == use.first)
          printf(" %u:%u", i, cycles);
    }
    printf("\n");
  }
}
